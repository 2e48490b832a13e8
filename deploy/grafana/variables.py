"""Variables that the dashboards share, and a dashboard without panels."""

from __future__ import annotations

from typing import Any, Dict, List

from deploy.grafana import panels

Variable = Dict[str, Any]

# Addresses of the runbooks, here in the repository, and of the page (sisctl web). Every installation has its own
# (deploy/README.md).
_RUNBOOKS = "docs/runbooks"
_PAGE = "http://localhost:9465"


def _labels(name: str, label: str, query: str) -> Variable:
    """Returns a variable over the values of a Prometheus label; any number may be chosen, at first all."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": panels.DATASOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        # When the time range changes; by name, ascending.
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # Not a list of all values: there may be a thousand runs, and labels may be empty.
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _choice(kind: str, name: str, label: str, values: List[str], chosen: str, **more: str) -> Variable:
    def option(value: str) -> Dict[str, Any]:
        return {"selected": value == chosen, "text": value, "value": value}

    options = [option(value) for value in values]
    return {
        "type": kind, "name": name, "label": label, "query": ",".join(values), "options": options,
        "current": option(chosen), **more,
    }  # fmt: skip


def _constant(name: str, value: str) -> Variable:
    return {"type": "constant", "name": name, "query": value, "hide": 2}


def datasource() -> Variable:
    return {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"}


def job() -> Variable:
    return _labels("job", "Job", "label_values(sis_cache_bytes, job)")


def instance() -> Variable:
    return _labels("instance", "Server", 'label_values(sis_cache_bytes{job=~"$job"}, instance)')


def runs() -> List[Variable]:
    """Returns variables for task, algorithm, model and run, each limited by the ones before it."""
    names = ["task", "algorithm", "model", "run"]
    variables = []
    for index, name in enumerate(names):
        matchers = ", ".join(f'{other}=~"${other}"' for other in ["job", *names[:index]])
        variables.append(_labels(name, name.capitalize(), f"label_values(sis_run_info{{{matchers}}}, {name})"))
    return variables


def by() -> Variable:
    return _choice("custom", "by", "Compare by", ["run", "task", "algorithm", "model"], "run")


def window() -> Variable:
    description = "Longer than a step takes: between two steps nothing is evaluated, and there is a gap."
    values = ["1m", "5m", "15m", "1h", "6h"]
    return _choice("interval", "window", "Averaged over", values, "5m", description=description)


def board(title: str, uid: str, description: str, variables: List[Variable]) -> panels.Dashboard:
    """Returns a dashboard without panels."""
    dashboards = {
        "type": "dashboards", "title": "Ratio service", "tags": ["sis"], "asDropdown": True, "keepTime": True,
    }  # fmt: skip
    page = {"type": "link", "title": "Page (sisctl web)", "url": "${page}", "targetBlank": True}
    return {
        "title": title,
        "uid": uid,
        "description": description,
        "tags": ["sis"],
        "timezone": "browser",
        "schemaVersion": 36,
        # One crosshair over all panels.
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {
            "list": [datasource(), job(), *variables, _constant("runbooks", _RUNBOOKS), _constant("page", _PAGE)]
        },
        "links": [dashboards, page],
        "panels": [],
    }
