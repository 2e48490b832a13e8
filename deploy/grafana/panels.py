"""The panels that our dashboards consist of, in Grafana's JSON model."""

from __future__ import annotations

import dataclasses
import string
from typing import Any, Dict, List, Optional, Sequence, Tuple

Panel = Dict[str, Any]
Dashboard = Dict[str, Any]

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

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HEIGHT = 8
# A dashboard is 24 units wide.
THIRD, HALF, WHOLE = 8, 12, 24


def _described(
    kind: str,
    title: str,
    unit: str,
    width: int,
    what: str,
    normal: str,
    otherwise: str,
    runbooks: Sequence[str],
    targets: Sequence[Dict[str, Any]],
    options: Dict[str, Any],
) -> Panel:
    """Returns a panel of Grafana's type `kind`, without its position.

    what, normal, otherwise: the panel's content, its normal state, and the advice for other states.
    runbooks: pages of docs/runbooks, without ending.
    """
    text = f"{what}\n\n**Normal:** {normal}\n\n**Else:** {otherwise}"
    pages = {name: f"${{runbooks}}/{name}.md" for name in runbooks}
    if pages:
        text += "\n\n**Runbooks:** " + ", ".join(f"[{name}]({page})" for name, page in pages.items())
    return {
        "type": kind,
        "title": title,
        "description": text,
        "links": [
            {"type": "link", "title": f"Runbook: {name.replace('_', ' ')}", "url": page, "targetBlank": True}
            for name, page in pages.items()
        ],
        "datasource": DATASOURCE,
        "targets": list(targets),
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "options": options,
        "gridPos": {"w": width, "h": _HEIGHT},
    }


def _query(expression: str, index: int = 0, **more: Any) -> Dict[str, Any]:
    """Returns a query over the dashboard's time range. Reference ids are A, B, ..."""
    return {
        "expr": expression, "refId": string.ascii_uppercase[index], "datasource": DATASOURCE, "range": True,
        "instant": False, **more,
    }  # fmt: skip


def _table_query(expression: str, index: int = 0) -> Dict[str, Any]:
    return _query(expression, index, format="table", range=False, instant=True)


def _thresholds(*steps: Tuple[Optional[float], str]) -> Dict[str, Any]:
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}


def _alert(below: Optional[float], above: Optional[float]) -> Dict[str, Any]:
    """Returns thresholds that are red on the side of a limit where an alert fires."""
    if below is not None:
        return _thresholds((None, "red"), (below, "transparent"))
    if above is not None:
        return _thresholds((None, "transparent"), (above, "red"))
    return _thresholds((None, "green"))


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
) -> Panel:
    """Returns a panel of values over time.

    expressions: by legend. alert_below, alert_above: limit of an alert, drawn as a dashed line. Gaps
    stay gaps, because nothing was evaluated there.
    """
    targets = [
        _query(expression, index, legendFormat=legend)
        for index, (legend, expression) in enumerate(expressions.items())
    ]
    options = {
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    panel = _described("timeseries", title, unit, width, what, normal, otherwise, runbooks, targets, options)
    custom: Dict[str, Any] = {
        "lineWidth": 1, "fillOpacity": 40 if stacked else 0, "showPoints": "auto", "spanNulls": False,
    }  # fmt: skip
    if alert_below is not None or alert_above is not None:
        custom["thresholdsStyle"] = {"mode": "dashed"}
    if stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    defaults = panel["fieldConfig"]["defaults"]
    defaults.update(custom=custom, thresholds=_alert(alert_below, alert_above))
    if least is not None:
        defaults["min"] = least
    if largest is not None:
        defaults["max"] = largest
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
) -> Panel:
    """Returns a panel with a bar per series, as it is now, sorted by a label with numeric values."""

    def convert(to: str) -> Dict[str, Any]:
        conversion = {"targetField": label, "destinationType": to}
        return {"id": "convertFieldType", "options": {"conversions": [conversion], "fields": {}}}

    options = {
        "reduceOptions": {"values": True, "calcs": ["lastNotNull"], "fields": "/^Value$/"},
        "orientation": "horizontal",
        "displayMode": "basic",
        "valueMode": "text",
        "showUnfilled": True,
    }
    targets = [_table_query(expression)]
    panel = _described("bargauge", title, unit, width, what, normal, otherwise, runbooks, targets, options)
    panel["transformations"] = [
        {"id": "organize", "options": {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": {}}},
        convert("number"),
        {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": label}]}},
        # The text fields of a row name its bar.
        convert("string"),
    ]
    panel["fieldConfig"]["defaults"].update(min=0, max=largest, thresholds=_thresholds((None, "blue")))
    return panel


def distribution(
    title: str,
    unit: str,
    buckets: str,
    *,
    what: str,
    normal: str,
    otherwise: str,
    runbooks: Sequence[str] = (),
) -> Panel:
    """Returns a panel of a histogram over time.

    buckets: the rate of the histogram's buckets, by `le`. unit: of the buckets' bounds.
    """
    options = {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64},
        "yAxis": {"unit": unit},
        "cellGap": 1,
        "legend": {"show": True},
        "tooltip": {"mode": "single"},
    }
    targets = [_query(buckets, legendFormat="{{le}}", format="heatmap")]
    return _described("heatmap", title, unit, THIRD, what, normal, otherwise, runbooks, targets, options)


@dataclasses.dataclass(frozen=True)
class Column:
    # None: only the labels of its series are shown.
    title: Optional[str]
    expression: str
    unit: str
    # A word and its colour by value. A table with words is sorted by value, the largest first.
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
) -> Panel:
    """Returns a table of current values, with a row per set of labels.

    labels: title by label; other labels are not shown.
    """
    values = {f"Value #{string.ascii_uppercase[index]}": column.title for index, column in enumerate(columns)}
    titles = {**labels, **{name: title for name, title in values.items() if title is not None}}
    hidden = ["Time", *(name for name, title in values.items() if title is None)]
    targets = [_table_query(column.expression, index) for index, column in enumerate(columns)]
    options: Dict[str, Any] = {"showHeader": True}
    panel = _described("table", title, COUNT, WHOLE, what, normal, otherwise, runbooks, targets, options)
    panel["transformations"] = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {name: True for name in hidden},
                "indexByName": {name: index for index, name in enumerate(titles)},
                "renameByName": titles,
            },
        },
    ]
    for column in columns:
        if column.title is None:
            continue
        properties: List[Dict[str, Any]] = [{"id": "unit", "value": column.unit}]
        if column.words:
            words = {str(value): {"text": word, "color": colour} for value, (word, colour) in column.words.items()}
            properties += [
                {"id": "mappings", "value": [{"type": "value", "options": words}]},
                {"id": "custom.cellOptions", "value": {"type": "color-text"}},
            ]
            options["sortBy"] = [{"displayName": column.title, "desc": True}]
        matcher = {"id": "byName", "options": column.title}
        panel["fieldConfig"]["overrides"].append({"matcher": matcher, "properties": properties})
    return panel


def add(board: Dashboard, title: str, panels: Sequence[Panel]) -> None:
    """Appends a row with this title, and `panels` below it.

    Their widths must fill lines of 24. Ids are consecutive, because links to a panel name them.
    """
    placed = board["panels"]
    y = max((panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in placed), default=0)
    row = {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"w": WHOLE, "h": 1}}
    x = 0
    for panel in (row, *panels):
        size = panel["gridPos"]
        size.update(x=x, y=y)
        panel["id"] = len(placed) + 1
        placed.append(panel)
        x += size["w"]
        if x == WHOLE:
            x, y = 0, y + size["h"]
