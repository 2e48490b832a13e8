"""The shapes of panels that our dashboards are made of."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Tuple

from grafana_foundation_sdk.builders import bargauge, common, heatmap, table, timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard, DashboardLink, Row, ThresholdsConfig
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

# Units, by Grafana's names. A unit of our own is a suffix; "si:" puts k, M and so on before it.
SHARE = "percentunit"
NATS = "suffix: nats"
TOKENS_PER_SECOND = "si:tokens/s"
SECONDS = "s"
BYTES = "bytes"
BYTES_PER_SECOND = "binBps"
CALLS_PER_SECOND = "reqps"
OPERATIONS_PER_SECOND = "ops"
COUNT = "short"

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT = 8
# The dashboard is 24 wide.
THIRD, HALF, WHOLE = 8, 12, 24


def _described(
    panel: Any,
    title: str,
    unit: str,
    what: str,
    normal: str,
    otherwise: str,
    runbooks: Sequence[str],
    width: int,
) -> Any:
    """what: the panel shows. normal, otherwise: what is, and what to think of or do if it isn't so.
    runbooks: pages of docs/runbooks, without ending."""
    text = f"{what}\n\n**Normal:** {normal}\n\n**Else:** {otherwise}"
    pages = {name: f"${{runbooks}}/{name}.md" for name in runbooks}
    if pages:
        text += "\n\n**Runbooks:** " + ", ".join(f"[{name}]({page})" for name, page in pages.items())
    links = [
        DashboardLink(f"Runbook: {name.replace('_', ' ')}")
        .type(dashboard.DashboardLinkType.LINK)
        .url(page)
        .target_blank(True)
        for name, page in pages.items()
    ]
    return (
        panel.title(title).description(text).links(links).datasource(DATASOURCE).unit(unit).span(width).height(_HEIGHT)
    )


def _query(expression: str, index: int = 0) -> Dataquery:
    """The reference ids are A, B, ..."""
    return Dataquery().expr(expression).ref_id(chr(ord("A") + index)).datasource(DATASOURCE)


def _table_query(expression: str, index: int = 0) -> Dataquery:
    return _query(expression, index).format(PromQueryFormat.TABLE).instant()


def _steps(below: Optional[float], above: Optional[float]) -> List[dashboard.Threshold]:
    """Red on that side of a limit where an alert fires."""
    if below is not None:
        return [dashboard.Threshold(None, "red"), dashboard.Threshold(below, "transparent")]
    if above is not None:
        return [dashboard.Threshold(None, "transparent"), dashboard.Threshold(above, "red")]
    return [dashboard.Threshold(None, "green")]


def lines(
    title: str,
    unit: str,
    expressions: Dict[str, str],
    *,
    what: str,
    normal: str,
    otherwise: str,
    runbooks: Sequence[str] = (),
    width: int = THIRD,
    largest: Optional[float] = None,
    least: Optional[float] = 0,
    stacked: bool = False,
    alert_below: Optional[float] = None,
    alert_above: Optional[float] = None,
) -> timeseries.Panel:
    """Values over time. expressions: by legend. alert_below, alert_above: where an alert fires, drawn
    as a dashed line. Gaps are left as they are: there nothing was evaluated."""
    panel = (
        _described(timeseries.Panel(), title, unit, what, normal, otherwise, runbooks, width)
        .targets(
            [
                _query(expression, index).legend_format(legend).range()
                for index, (legend, expression) in enumerate(expressions.items())
            ]
        )
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(models.LegendDisplayMode.LIST)
            .placement(models.LegendPlacement.BOTTOM)
            .calcs([])
        )
        .tooltip(common.VizTooltipOptions().mode(models.TooltipDisplayMode.MULTI).sort(models.SortOrder.DESCENDING))
        .line_width(1)
        .fill_opacity(40 if stacked else 0)
        .show_points(models.VisibilityMode.AUTO)
        .span_nulls(False)
        .thresholds(
            ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(_steps(alert_below, alert_above))
        )
    )
    if alert_below is not None or alert_above is not None:
        style = common.GraphThresholdsStyleConfig().mode(models.GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds_style(style)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(models.StackingMode.NORMAL).group("A"))
    if least is not None:
        panel = panel.min(least)
    if largest is not None:
        panel = panel.max(largest)
    return panel


def bars(
    title: str,
    unit: str,
    expression: str,
    label: str,
    *,
    what: str,
    normal: str,
    otherwise: str,
    runbooks: Sequence[str] = (),
    width: int,
    largest: float,
) -> bargauge.Panel:
    """A bar per series as it is now, in the order of a label whose values are numbers."""

    def convert(to: str) -> dashboard.DataTransformerConfig:
        conversion = {"targetField": label, "destinationType": to}
        return dashboard.DataTransformerConfig("convertFieldType", options={"conversions": [conversion], "fields": {}})

    return (
        _described(bargauge.Panel(), title, unit, what, normal, otherwise, runbooks, width)
        .with_target(_table_query(expression))
        .transformations(
            [
                dashboard.DataTransformerConfig(
                    "organize",
                    options={"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": {}},
                ),
                convert("number"),
                dashboard.DataTransformerConfig("sortBy", options={"fields": {}, "sort": [{"field": label}]}),
                # A bar is named after the texts of its row.
                convert("string"),
            ]
        )
        .reduce_options(common.ReduceDataOptions().values(True).calcs(["lastNotNull"]).fields("/^Value$/"))
        .orientation(models.VizOrientation.HORIZONTAL)
        .display_mode(models.BarGaugeDisplayMode.BASIC)
        .value_mode(models.BarGaugeValueMode.TEXT)
        .show_unfilled(True)
        .thresholds(
            ThresholdsConfig()
            .mode(dashboard.ThresholdsMode.ABSOLUTE)
            .steps([dashboard.Threshold(None, "blue")])
        )
        .min(0)
        .max(largest)
    )


def distribution(
    title: str,
    unit: str,
    buckets: str,
    *,
    what: str,
    normal: str,
    otherwise: str,
    runbooks: Sequence[str] = (),
) -> heatmap.Panel:
    """A histogram over time. buckets: the rate of its buckets, by le; unit: of the bounds."""
    return (
        _described(heatmap.Panel(), title, unit, what, normal, otherwise, runbooks, THIRD)
        .with_target(_query(buckets).legend_format("{{le}}").format(PromQueryFormat.HEATMAP).range())
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .scale(heatmap_models.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
        )
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .cell_gap(1)
        .show_legend()
        .mode(models.TooltipDisplayMode.SINGLE)
    )


@dataclasses.dataclass(frozen=True)
class Column:
    # None: only the labels of its series are shown.
    title: Optional[str]
    expression: str
    unit: str
    # What values mean: a word and its colour by value. The table is then sorted by it, the largest
    # first.
    words: Dict[int, Tuple[str, str]] = dataclasses.field(default_factory=dict)


def rows(
    title: str,
    columns: Sequence[Column],
    labels: Dict[str, str],
    *,
    what: str,
    normal: str,
    otherwise: str,
    runbooks: Sequence[str] = (),
) -> table.Panel:
    """A table of what is now, with a line per set of labels. labels: title by label; others are not
    shown."""
    values = {f"Value #{chr(ord('A') + index)}": column.title for index, column in enumerate(columns)}
    titles = {**labels, **{name: title for name, title in values.items() if title is not None}}
    hidden = ["Time", *(name for name, title in values.items() if title is None)]
    panel = (
        _described(table.Panel(), title, COUNT, what, normal, otherwise, runbooks, WHOLE)
        .targets([_table_query(column.expression, index) for index, column in enumerate(columns)])
        .transformations(
            [
                dashboard.DataTransformerConfig("merge", options={}),
                dashboard.DataTransformerConfig(
                    "organize",
                    options={
                        "excludeByName": {name: True for name in hidden},
                        "indexByName": {name: index for index, name in enumerate(titles)},
                        "renameByName": titles,
                    },
                ),
            ]
        )
        .show_header(True)
    )
    for column in columns:
        if column.title is not None:
            options = [dashboard.DynamicConfigValue("unit", column.unit)]
            if column.words:
                words = {str(value): {"text": word, "color": colour} for value, (word, colour) in column.words.items()}
                options += [
                    dashboard.DynamicConfigValue("mappings", [{"type": "value", "options": words}]),
                    dashboard.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
                ]
                panel = panel.sort_by([common.TableSortByFieldState().display_name(column.title).desc(True)])
            panel = panel.override_by_name(column.title, options)
    return panel


def add(board: Dashboard, title: str, panels: Sequence[Any]) -> None:
    """A row of this title with the panels below it. Their widths must fill lines of 24."""
    board.with_row(Row(title))
    for panel in panels:
        board.with_panel(panel)


def numbered(board: Dashboard) -> dashboard.Dashboard:
    """The built dashboard, its panels with ids: links to a panel need them, and must not change."""
    built = board.build()
    for index, panel in enumerate(built.panels or []):
        panel.id_val = index + 1
    return built
