"""Every alert is provoked on real servers, under a real Prometheus. The panels that its
runbook names exist, and the steps of the runbook end the alert."""

import pathlib
import re
import subprocess
import tempfile
import time
import unittest

import sis
from server.testing.live_server import LiveServer
from server.testing.until import until
from tests.deploy import dashboards
from tests.deploy.problems import of_runs, of_servers
from tests.deploy.prometheus_server import PrometheusServer

SISCTL = pathlib.Path("client/python/sisctl")
RUNBOOKS = pathlib.Path("docs/runbooks")
# Longer than most rules look back: a past, for the one that compares with it.
HEALTHY_SECONDS = 20
# A trainer is missed after a minute.
SECONDS = 150
# Servers' findings about events stay for 15 minutes.
LASTING = {"SisEntriesRefused", "SisEvictedUnread"}
EVERYTHING = dashboards.everything("1m")


def runbook_of(alert):
    (rule,) = [rule for rule in dashboards.rules_in(dashboards.ALERTS) if rule["alert"] == alert]
    return (RUNBOOKS / rule["annotations"]["runbook_url"].rpartition("/")[2]).read_text()


def panels_in(runbook):
    """Returns the titles of panels that a runbook names, in quotes."""
    how = re.search(r"\*\*How to see it\.\*\*(.*?)\*\*What to do", runbook, re.S).group(1)
    return re.findall(r'"([^"]+)"', re.sub(r"`[^`]*`", "", " ".join(how.split())))


def looks_in(runbook):
    """Its commands of sisctl that change nothing."""
    commands = re.findall(r"`sisctl ((?:run show|run list|top|sequence list|step show|diagnose)\b[^`]*)`", " ".join(runbook.split()))
    return sorted(set(commands))


class RunbooksTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Names of sockets are short.
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(dir="/tmp", prefix="sis_")))
        server = cls.enterClassContext(LiveServer(cache_bytes=256 << 20))
        client = cls.enterClassContext(sis.Client(server.address))

        def wrong(*arguments, **fault):
            return of_runs.WrongValues(server, client, *arguments, **fault)

        cls.problems = [
            wrong("SisEnginesDiffer", ["SisDSisNearD"], shift=1),
            wrong("SisAcceptRateLow", noise=1.0),
            wrong("SisAcceptRateCollapsing", noise=0.6),
            wrong("SisEffectiveSampleSizeLow", noise=2.0),
            wrong("SisMissingTokens", lost=40),
            wrong("SisUnusableLogProbs", lost=40, reason=sis.MissingReason.INFINITE_LOG_PROB),
            wrong("SisUnknownVersion", lost=1, reason=sis.MissingReason.UNKNOWN_VERSION),
            wrong("SisEnvelopeViolations", shifted_slots=1),
            wrong("SisFreshTokensDiffer", temperature=1.35),
            wrong("SisStaleTokensDiffer", load={"versions": 5}, old_noise=1.5),
            of_runs.TooFewSlots(server, client),
            of_runs.EntriesRefused(server, client, "SisEntriesRefused"),
            of_runs.EvaluationsRefused(server, client, "SisEvaluationsRefused"),
            of_runs.Stopped(server, client, "SisIngestStalled", goes_on=False),
            of_runs.Stopped(server, client, "SisTrainerStopped", goes_on=True),
            of_servers.ServerDown(),
            of_servers.TooManyRuns(),
            of_servers.TrainerGone(),
            of_servers.NoRoom(),
            of_servers.Files(folder),
            of_servers.QuarantinedRun(folder),
            of_servers.StoreDamaged(folder),
            of_servers.RedisFails(folder),
            of_servers.RedisIsSlow(folder),
        ]
        for problem in cls.problems:
            cls.addClassCleanup(problem.close)
        cls.prometheus = PrometheusServer(
            sorted({problem.server.admin_address for problem in cls.problems}), minutes_are_seconds=True
        )
        cls.addClassCleanup(cls.prometheus.close)
        for problem in cls.problems:
            problem.start()
        time.sleep(HEALTHY_SECONDS)

    def firing(self, alert, labels):
        return [found for found in self.prometheus.firing().get(alert, []) if labels.items() <= found.items()]

    def test_each_alert_is_provoked_seen_as_its_runbook_says_and_ended(self):
        self.assertEqual(self.prometheus.firing(), {}, "something is wrong with health")
        alerts = [(problem, *alert) for problem in self.problems for alert in problem.alerts.items()]
        for problem in self.problems:
            problem.begin()
        begun = time.monotonic()
        for problem, alert, labels in alerts:
            with self.subTest(alert):
                until(lambda: self.firing(alert, labels), seconds=begun + SECONDS - time.monotonic())
                self.look(problem, runbook_of(alert))
        for problem in self.problems:
            problem.end()
        ended = time.monotonic()
        for problem, alert, labels in alerts:
            with self.subTest(alert):
                if alert in LASTING:
                    continue
                until(lambda: not self.firing(alert, labels), seconds=ended + SECONDS - time.monotonic())
        self.assertEqual([failure for problem in self.problems for failure in problem.failures], [])

    def look(self, problem, runbook):
        values = {**EVERYTHING, "instance": problem.server.admin_address}
        if problem.run_id:
            values["run"] = problem.run_id
        for title in panels_in(runbook):
            with self.subTest(panel=title):
                found = [query for query in dashboards.queries() if query.panel == title]
                self.assertTrue(any(self.prometheus.query(query.with_values(values)) for query in found))
        for command in looks_in(runbook):
            # Where a server has the problem, there is no run to look at.
            if problem.run_id or "RUN" not in command:
                with self.subTest(command=command):
                    self.run_sisctl(problem, command)

    def run_sisctl(self, problem, command):
        words = command.replace("RUN", problem.run_id or "").replace("DRAW", "latest").split()
        if words[0] == "top":
            words.append("--once")
        said = subprocess.run(
            [SISCTL, *words, f"--server={problem.server.address}"], capture_output=True, text=True, timeout=60
        )
        # 3: diagnose found a fault.
        self.assertEqual((said.returncode, said.stderr), (3 if words[0] == "diagnose" else 0, ""), said.stdout)
        self.assertTrue(said.stdout)

    def test_every_alert_has_a_problem_here(self):
        rules = [rule["alert"] for rule in dashboards.rules_in(dashboards.ALERTS)]
        self.assertEqual(sorted(alert for problem in self.problems for alert in problem.alerts), sorted(rules))


if __name__ == "__main__":
    unittest.main()
