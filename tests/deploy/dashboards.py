"""The checked-in dashboards and rules, for tests."""

import json
import pathlib
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Set

import yaml

DASHBOARDS = sorted(pathlib.Path("deploy/grafana").glob("*.json"))
RULES = pathlib.Path("deploy/prometheus/sis.rules.yaml")
ALERTS = pathlib.Path("deploy/prometheus/sis.alerts.yaml")
METRICS_PAGE = pathlib.Path("docs/metrics.md")


class Query(NamedTuple):
    dashboard: str
    panel: str
    legend: str
    # As written, with variables.
    expression: str

    def with_values(self, values: Dict[str, str]) -> str:
        """As Grafana would send it, with these values of its variables."""
        return re.sub(r"\$(\w+)", lambda variable: values[variable.group(1)], self.expression)


def everything(window: str) -> Dict[str, str]:
    """Values of the dashboards' variables: all runs and servers, over all that was scraped in a window
    such as "10m"."""
    names = ["job", "instance", "run", "task", "algorithm", "model"]
    return {**dict.fromkeys(names, ".*"), "by": "run", "window": window, "__rate_interval": window}


def rules_in(path: pathlib.Path) -> List[Dict[str, Any]]:
    """Returns the rules of a file such as RULES or ALERTS."""
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def panels(board: Dict[str, Any]) -> List[Dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries() -> Iterator[Query]:
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        for panel in panels(board):
            for target in panel["targets"]:
                yield Query(board["title"], panel["title"], target.get("legendFormat", ""), target["expr"])


def queries_of_the_page() -> List[str]:
    """Returns the queries that docs/metrics.md recommends, each below its question."""
    blocks = re.findall(r"(?:^    .*\n?)+", METRICS_PAGE.read_text(), re.M)
    return [re.sub(r"^ *#.*\n", "", block) for block in blocks if block.startswith("    # ")]


def metrics_in(expression: str) -> Set[str]:
    """The metrics that an expression reads; not what a rule of ours has recorded."""
    labels = r"\{[^}]*\}|\b(?:by|on|group_left) \([^)]*\)"
    words = re.sub(labels, "", re.sub(r'"[^"]*"', "", expression))
    return set(re.findall(r"(?<![\w:])(?:(?:sis|grpc|process)_\w+|up)(?![\w:])", words))


def documented_metrics() -> Set[str]:
    """Returns the metrics in the lists of docs/metrics.md, a histogram as its series. `up` is Prometheus' own."""
    found = {"up"}
    for line in METRICS_PAGE.read_text().splitlines():
        if not line.startswith("- `"):
            continue
        names, _, meaning = line.partition(": ")
        for name in re.findall(r"`(\w+)`", names):
            found |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if meaning.startswith("histogram: ") else {name}
    return found


def recorded_in(expression: str) -> Set[str]:
    """Returns the series of recording rules that an expression reads."""
    return set(re.findall(r"\b\w+:\w+:\w+", expression))
