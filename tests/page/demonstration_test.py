"""The demonstration, followed while it trains: the page, `sisctl top`, GetStep and /metrics show the
values that its trainer logged."""

import dataclasses
import math
import re
import subprocess
import unittest
import urllib.request

import sis
from client.demo import trainer
from server.testing.live_server import LiveServer
from tests.page.browser import Browser
from tests.page.charts import chart
from tests.page.sisctl_web import SISCTL, SisctlWeb

# As many draws as `sisctl top` lists.
ROLLOUTS, UPDATES = 3, 4
SETTINGS = trainer.Settings(accuracy=0.15, rollouts=ROLLOUTS, prompts=4, updates=UPDATES)
RUN = "sis-3"


class DemonstrationTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer()
        cls.addClassCleanup(cls.server.close)
        cls.page = SisctlWeb(cls.server.address)
        cls.addClassCleanup(cls.page.close)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)
        cls.client = sis.Client(cls.server.address)
        cls.addClassCleanup(cls.client.close)
        start = trainer.warmed_up(SETTINGS, 3)
        # The rollouts after which the page was looked at.
        cls.looked_at = []
        cls.learned = trainer.train(cls.server.address, RUN, "sis", 3, SETTINGS, start, cls.look)
        cls.logged = {
            item.number * UPDATES + update: totals
            for item in cls.learned
            for update, totals in enumerate(item.updates)
        }

    @classmethod
    def look(cls, learned):
        """Waits until the page, which is opened once, has what was logged so far."""
        if not cls.looked_at:
            cls.browser.open(f"{cls.page.url}#/run/{RUN}")
            cls.browser.wait_for_text("Live, updated", "#status")
        last = str(learned.number * UPDATES + UPDATES - 1)
        cls.browser.wait(f"draw {last}", lambda: last in cls.drawn("Accept rate")["names"])
        cls.looked_at.append(learned.number)

    @classmethod
    def drawn(cls, title):
        return chart(cls.browser, title)

    def test_it_trained_and_was_seen_while_it_did(self):
        self.assertEqual(sorted(self.logged), list(range(ROLLOUTS * UPDATES)))
        self.assertGreater(sum(totals.d for totals in self.logged.values()), 0)
        self.assertEqual(self.looked_at, [0, 1, 2])

    def test_get_step_says_what_was_logged(self):
        run = self.client.get_run(RUN).run
        steps = self.client.list_steps(run)
        self.assertEqual({draw: step.totals for draw, step in steps.items()}, self.logged)
        for item in self.learned:
            last = item.number * UPDATES + UPDATES - 1
            self.assertEqual(list(steps[last].prefix_curve), item.by_top_k)
        for draw, step in steps.items():
            self.assertEqual(step, dataclasses.replace(self.client.list_steps(run, draws=[draw])[draw], distributions=None))
            self.assertEqual(sum(step.missing.values()), step.totals.missing)
            self.assertEqual(step.prefix_curve[-1].expected_acceptance, step.totals.expected_acceptance)
            self.assertEqual(step.prefix_curve[-1].residual_mass, step.totals.residual_mass)

    def test_the_page_shows_what_was_logged(self):
        for title, line, logged in (
            ("Accept rate", "sampled", lambda totals: totals.accept_rate),
            ("D and D_SIS", "D", lambda totals: totals.mean_d),
            ("D and D_SIS", "D_SIS", lambda totals: totals.mean_d_sis),
        ):
            drawn = self.drawn(title)
            self.assertEqual(drawn["names"], [str(draw) for draw in self.logged])
            for value, totals in zip(drawn["lines"][line], self.logged.values(), strict=True):
                self.assertAlmostEqual(value, logged(totals), delta=1e-12, msg=line)
        drawn = self.drawn("Accept rate against k")
        points = self.learned[-1].by_top_k
        self.assertEqual(drawn["names"], [str(point.top_k) for point in points])
        for value, point in zip(drawn["lines"]["expected accept rate"], points, strict=True):
            self.assertAlmostEqual(value, point.expected_acceptance / point.positions, delta=1e-12)

    def test_sisctl_top_shows_what_was_logged(self):
        top = [SISCTL, "top", RUN, "--once", f"--server={self.server.address}"]
        text = subprocess.run(top, capture_output=True, text=True, check=True, timeout=60).stdout
        lines = text.splitlines()
        begin = next(number for number, line in enumerate(lines) if line.split()[:1] == ["DRAW"])
        # Right-aligned: a cell ends where its heading ends.
        ends = [word.end() for word in re.finditer(r"\S+", lines[begin])]
        columns, *table = [
            [line[left:right].strip() for left, right in zip([0, *ends], ends)]
            for line in lines[begin : begin + len(self.logged) + 1]
        ]
        rows = {int(row[0]): dict(zip(columns, row)) for row in table}
        self.assertEqual(list(rows), sorted(self.logged, reverse=True))
        for draw, totals in self.logged.items():
            for column, logged in (
                ("ACCEPT", totals.accept_rate), ("D/TOKEN", totals.mean_d), ("D_SIS", totals.mean_d_sis),
            ):  # fmt: skip
                shown = rows[draw][column]
                value = float(shown.rstrip("%")) / (100 if shown.endswith("%") else 1)
                # To three digits.
                self.assertTrue(math.isclose(value, logged, rel_tol=5.001e-3), f"draw {draw}, {column}: {shown}, {logged}")

    def test_metrics_count_what_was_logged(self):
        with urllib.request.urlopen(f"http://{self.server.admin_address}/metrics", timeout=10) as answer:
            text = answer.read().decode()

        def counted(name, labels=""):
            series = re.findall(rf'^{name}\{{(.*)\}} (.*)$', text, re.M)
            return sum(float(value) for key, value in series if f'run="{RUN}"' in key and labels in key)

        logged = sum(self.logged.values(), sis.Totals())
        self.assertEqual(counted("sis_tokens_total"), logged.scored + logged.missing)
        self.assertEqual(counted("sis_tokens_total", 'decision="accepted"'), logged.accepted)
        self.assertAlmostEqual(counted("sis_deviation_nats_total"), logged.d, delta=1e-9 * logged.d)
        self.assertAlmostEqual(counted("sis_modified_deviation_nats_total"), logged.d_sis, delta=1e-9 * logged.d)


if __name__ == "__main__":
    unittest.main()
