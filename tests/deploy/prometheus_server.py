"""A real Prometheus that scrapes and judges every second, for tests."""

import datetime
import json
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from typing import Any, Dict, List, Sequence

from tests.deploy import dashboards


def parse_time(text: str) -> float:
    """Seconds since 1970. RFC 3339, with more digits than datetime takes."""
    whole, _, rest = text.partition(".")
    fraction, zone = re.fullmatch(r"(\d*)(Z|[+-].*)", rest).groups()
    zone = "+00:00" if zone == "Z" else zone
    return datetime.datetime.fromisoformat(whole + zone).timestamp() + float(f"0.{fraction or 0}")


class PrometheusServer:
    """Prometheus with the configuration and rules of deploy/prometheus, except three things: the
    targets, a second instead of 15, and alerts that fire without waiting (`for`). It runs until close().

    minutes_are_seconds: what rules look back at are as many seconds as they say minutes, an hour 30.
    """

    def __init__(self, targets: Sequence[str], minutes_are_seconds: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self._folder.name)
        config = pathlib.Path("deploy/prometheus/prometheus.yml").read_text()
        for pattern, replacement in (("localhost:9464", '", "'.join(targets)), (r"interval: 15s", "interval: 1s")):
            config, count = re.subn(pattern, replacement, config)
            assert count, pattern
        (folder / "prometheus.yml").write_text(config)
        for path in (dashboards.RULES, dashboards.ALERTS):
            rules = re.sub(r"for: \d+m", "for: 0s", path.read_text())
            if minutes_are_seconds:
                rules = re.sub(r"\[1h\]", "[30s]", re.sub(r"(\[|offset )(\d+)m\b", r"\1\2s", rules))
            (folder / path.name).write_text(rules)
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                "--web.listen-address=127.0.0.1:0",
            ],
            stderr=self._log,
            stdout=self._log,
        )
        self._address = self._listening()

    def _listening(self) -> str:
        while True:
            log = pathlib.Path(self._log.name).read_text()
            found = re.search(r'msg="Listening on" address=(\S+)', log)
            if found and "Server is ready to receive web requests" in log:
                return found.group(1)
            if self._process.poll() is not None:
                raise RuntimeError(f"prometheus ended with {self._process.returncode}:\n{log}")
            time.sleep(0.1)

    def get(self, path: str, **parameters: str) -> Any:
        """Returns the data of an answer of the HTTP API. Raises urllib.error.HTTPError for an error."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> List[Dict[str, Any]]:
        """The series that an expression has now: "metric", their labels, and "value", of time and
        text."""
        return self.get("query", query=expression)["result"]

    def value(self, expression: str) -> float:
        """Returns the value of an expression with one series."""
        (series,) = self.query(expression)
        return float(series["value"][1])

    def wait_for(self, expression: str, seconds: float = 60) -> None:
        """Until the expression has a series."""
        deadline = time.monotonic() + seconds
        while not self.query(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} has no series after {seconds} s")
            time.sleep(0.2)

    def wait_for_rules(self, after: float) -> None:
        """Until all rules have been evaluated after this time, in seconds since 1970, and alerts with
        what rules recorded then."""
        for _ in range(2):
            while any(parse_time(group["lastEvaluation"]) <= after for group in self.get("rules")["groups"]):
                time.sleep(0.2)
            after = self.value("vector(time())")

    def firing(self) -> Dict[str, List[Dict[str, str]]]:
        """Labels of the alerts that fire, by name."""
        alerts: Dict[str, List[Dict[str, str]]] = {}
        for alert in self.get("alerts")["alerts"]:
            alerts.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return alerts

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        self._log.close()
        self._folder.cleanup()
