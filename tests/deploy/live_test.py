"""A real Prometheus over a live server: every panel has data and shows the values that
the trainers logged, and no alert fires without a fault."""

import http.server
import math
import re
import tempfile
import threading
import time
import unittest
import urllib.request

import sis
from server.testing.live_server import LiveServer
from tests.deploy import dashboards, load
from tests.deploy.prometheus_server import PrometheusServer

SECONDS_OF_LOAD = 6
# Algorithms that the trainers of the load only observe.
OBSERVED = {"tis": sis.Tis(), "grpo": sis.Grpo()}
# Panels of a server with a device and TLS. Tests have no device, and auth_test compares the panels of
# TLS with a certificate.
OTHER_PANELS = {
    "Device cache", "Blocks on the device", "Copies evicted from the device", "Certificate", "Invalid files",
}  # fmt: skip
OTHER_METRICS = """\
sis_device_cache_budget_bytes 7340032
sis_device_cache_bytes 4096
sis_device_cache_reads_total{result="hit"} 11
sis_device_cache_reads_total{result="copied"} 5
sis_device_cache_reads_total{result="passed"} 3
sis_device_cache_evictions_total 2
sis_tls_certificate_not_after_timestamp_seconds 4102444800
sis_reload_failed{files="tls"} 0
"""
EVERYTHING = dashboards.everything("10m")


class OtherServer(http.server.BaseHTTPRequestHandler):
    """Answers every GET with these metrics."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(OTHER_METRICS.encode())

    def log_message(self, *_):
        pass


class LiveTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.server = cls.enterClassContext(LiveServer(f"--store=rocksdb:{folder}/store"))
        other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), OtherServer)
        threading.Thread(target=other.serve_forever, daemon=True).start()
        cls.addClassCleanup(other.server_close)
        cls.addClassCleanup(other.shutdown)
        cls.admin_address = cls.server.said["admin"]
        cls.prometheus = PrometheusServer([cls.admin_address, f"127.0.0.1:{other.server_port}"])
        cls.addClassCleanup(cls.prometheus.close)
        cls.client = cls.enterClassContext(sis.Client(cls.server.address))

        # Runs with and without labels.
        cls.runs = [
            load.Training(cls.client, "even-a", 1, task="even tokens", algorithm="grpo", model="table"),
            load.Training(cls.client, "even-b", 2, task="even tokens", algorithm="grpo+sis", model="table"),
            load.Training(cls.client, "unnamed", 3),
        ]
        # Rates begin with the first sample: it must be of a run that has done nothing yet.
        for training in cls.runs:
            cls.prometheus.wait_for(f'sis_run_info{{run="{training.run.id}"}}')
        cls.began = cls.prometheus.value("vector(time())")
        begun = time.monotonic()
        while time.monotonic() < begun + SECONDS_OF_LOAD:
            for training in cls.runs:
                training.step(observe=OBSERVED)
        # Another look at what is known already, so that each method has a latency.
        cls.client.list_steps(cls.runs[0].run, draws=[cls.runs[0].draws - 1])
        cls.wait_until_scraped()

    @classmethod
    def scraped(cls):
        """Tokens that the server says are evaluated, of all runs."""
        with urllib.request.urlopen(f"http://{cls.admin_address}/metrics", timeout=10) as response:
            text = response.read().decode()
        return sum(float(value) for value in re.findall(r"^sis_tokens_total\{.*\} (.*)$", text, re.M))

    @classmethod
    def wait_until_scraped(cls):
        """Until Prometheus has all of it, and has judged it."""
        cls.prometheus.wait_for(f"sum(sis_tokens_total) == {cls.scraped():.0f}")
        now = cls.prometheus.value("vector(time())")
        cls.prometheus.wait_for_rules(now)

    def test_every_panel_has_data(self):
        empty = []
        for query in dashboards.queries():
            for by in ["run", "task", "algorithm", "model"] if "$by" in query.expression else ["run"]:
                series = self.prometheus.query(query.with_values({**EVERYTHING, "by": by}))
                if not series or not all(math.isfinite(float(one["value"][1])) for one in series):
                    empty.append((query.dashboard, query.panel, query.legend, by))
        self.assertEqual(empty, [])

    def test_every_query_of_the_page_has_data(self):
        queries = dashboards.queries_of_the_page()
        self.assertGreater(len(queries), 5)
        self.assertEqual([query for query in queries if not self.prometheus.query(query)], [])

    def test_nothing_else_stands_in(self):
        server = {**EVERYTHING, "instance": self.admin_address}
        empty = {query.panel for query in dashboards.queries() if not self.prometheus.query(query.with_values(server))}
        self.assertEqual(empty, OTHER_PANELS)

    def shown(self, panel, legend, run):
        """Returns the value that a panel of "RL run" shows for one run."""
        (query,) = [
            query for query in dashboards.queries() if query.panel == panel and (legend is None or query.legend == legend)
        ]
        return self.prometheus.value(query.with_values({**EVERYTHING, "run": run}))

    def test_panels_show_what_trainers_logged(self):
        for training in self.runs:
            run, totals = training.run.id, training.totals
            for panel, legend, logged in (
                ("Accept rate", "{{$by}} sampled", totals.accept_rate),
                ("Accept rate", "{{$by}} mean of a", totals.mean_acceptance_probability),
                ("Accept rate", "{{$by}} expected", totals.mean_expected_acceptance),
                ("D and D_SIS per token", "{{$by}} D", totals.mean_d),
                ("D and D_SIS per token", "{{$by}} D_SIS", totals.mean_d_sis),
                ("D_SIS / D", None, totals.d_sis / totals.d),
                ("KL divergence", None, totals.mean_k3),
                ("Total variation on the set", None, totals.mean_total_variation),
                ("Log-envelope", "{{$by}} mean", totals.mean_log_envelope),
                ("Residual mass", "{{$by}} mean", totals.mean_residual_mass),
            ):
                with self.subTest(run=run, panel=panel, legend=legend):
                    self.assertAlmostEqual(self.shown(panel, legend, run), logged, delta=1e-6 * abs(logged))

    def test_rules_are_evaluated_and_alerts_are_silent_until_an_engine_differs(self):
        rules = [rule for group in self.prometheus.get("rules")["groups"] for rule in group["rules"]]
        self.assertGreater(len(rules), 20)
        self.assertEqual([rule for rule in rules if rule["health"] != "ok"], [])
        # No alert was pending or firing until now, except for slow answers, which a busy machine gives too.
        elapsed = math.floor(self.prometheus.value("vector(time())") - self.began)
        self.assertGreater(elapsed, SECONDS_OF_LOAD)
        alerts = 'ALERTS{alertname!~"SisTargetDown|SisLatency|SisStoreSlow"}'
        self.assertEqual(self.prometheus.query(f"count_over_time({alerts}[{elapsed}s])"), [])
        # A trainer whose rows are shifted by one position.
        shifted = load.Training(self.client, "shifted", 4)
        self.prometheus.wait_for('sis_run_info{run="shifted"}')
        for _ in range(3):
            shifted.update(shifted.rollout(), shift=1)
        self.wait_until_scraped()
        self.prometheus.wait_for('ALERTS{alertname="SisEnginesDiffer"}')
        firing = self.prometheus.firing()
        self.assertIn("SisAcceptRateLow", firing)
        self.assertEqual({labels["run"] for several in firing.values() for labels in several}, {"shifted"})


if __name__ == "__main__":
    unittest.main()
