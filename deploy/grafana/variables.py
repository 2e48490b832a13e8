"""What the dashboards let one choose, and what they have in common."""

from __future__ import annotations

from typing import Any, List

from grafana_foundation_sdk.builders.dashboard import (
    ConstantVariable,
    CustomVariable,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    IntervalVariable,
    QueryVariable,
)
from grafana_foundation_sdk.models import dashboard

from deploy.grafana import panels

# Where docs/runbooks can be read, and a server's page. Every installation has places of its own:
# deploy/README.md.
_RUNBOOKS = "https://example.org/docs/runbooks"
_PAGE = "http://localhost:9464"


def _labels(name: str, label: str, query: str) -> QueryVariable:
    """Values of a label, any number of them; all to begin with."""
    return (
        QueryVariable(name)
        .label(label)
        .datasource(panels.DATASOURCE)
        .query({"query": query, "refId": f"variable-{name}"})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        # Not the values one by one: there may be a thousand runs, and labels may be empty.
        .all_value(".*")
        .current(dashboard.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _choices(values: List[str], chosen: str) -> List[dashboard.VariableOption]:
    return [dashboard.VariableOption(selected=value == chosen, text=value, value=value) for value in values]


def datasource() -> DatasourceVariable:
    return DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def job() -> QueryVariable:
    return _labels("job", "Job", "label_values(sis_cache_bytes, job)")


def instance() -> QueryVariable:
    return _labels("instance", "Server", 'label_values(sis_cache_bytes{job=~"$job"}, instance)')


def runs() -> List[QueryVariable]:
    """Task, algorithm, model and run, each among those that go with the ones before."""
    names = ["task", "algorithm", "model", "run"]
    variables = []
    for index, name in enumerate(names):
        matchers = ", ".join(f'{other}=~"${other}"' for other in ["job", *names[:index]])
        variables.append(_labels(name, name.capitalize(), f"label_values(sis_run_info{{{matchers}}}, {name})"))
    return variables


def by() -> CustomVariable:
    values = ["run", "task", "algorithm", "model"]
    return (
        CustomVariable("by")
        .label("Compare by")
        .values(",".join(values))
        .options(_choices(values, "run"))
        .current(dashboard.VariableOption(selected=True, text="run", value="run"))
    )


def window() -> IntervalVariable:
    values = ["1m", "5m", "15m", "1h", "6h"]
    return (
        IntervalVariable("window")
        .label("Averaged over")
        .description("Longer than a step takes: between two steps nothing is evaluated, and there is a gap.")
        .values(",".join(values))
        .options(_choices(values, "5m"))
        .current(dashboard.VariableOption(selected=True, text="5m", value="5m"))
    )


def board(title: str, uid: str, description: str, variables: List[Any]) -> Dashboard:
    """A dashboard without panels yet."""
    dashboards = (
        DashboardLink("Ratio service")
        .type(dashboard.DashboardLinkType.DASHBOARDS)
        .tags(["sis"])
        .as_dropdown(True)
        .keep_time(True)
    )
    page = DashboardLink("Page of a server").type(dashboard.DashboardLinkType.LINK).url("${page}").target_blank(True)
    constants = [ConstantVariable("runbooks").value(_RUNBOOKS), ConstantVariable("page").value(_PAGE)]
    return (
        Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["sis"])
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .variables([datasource(), job(), *variables, *constants])
        .link(dashboards)
        .link(page)
    )
