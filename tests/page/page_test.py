"""The page as a person sees it: of an empty, a busy, a stopped and a restarted server."""

import json
import pathlib
import tempfile
import unittest

import sis
from selenium.webdriver.common.keys import Keys
from server.testing.live_server import LiveServer
from tests.page.browser import NARROW, WIDE, Browser
from tests.page.charts import chart
from tests.page.training_load import PREFIX_CURVE, VOCABULARY, TrainingLoad

DRAWS = range(1, 9)

# The cells of the rows of the table below this heading.
_TABLE = """
const heading = [...document.querySelectorAll("h3")].find(h3 => h3.textContent === arguments[0]);
let table = heading?.nextElementSibling;
while (table && !table.querySelector("table")) table = table.nextElementSibling;
if (!table) return null;
return [...table.querySelectorAll("tr")].slice(1).map(
    row => [...row.querySelectorAll("td")].map(cell => cell.textContent));
"""


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.browser.look(WIDE, dark=False)
        self.browser.problems()

    def start(self, *flags):
        server = LiveServer(*flags)
        self.addCleanup(server.kill)
        client = sis.Client(server.address)
        self.addCleanup(client.close)
        return server, client

    def tokenizer(self):
        """A file that calls token 7 "word 7"."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "tokenizer.json"
        path.write_text(json.dumps({"model": {"vocab": {f"word {i}": i for i in range(VOCABULARY)}}}))
        return path

    def open(self, server, place="/"):
        self.browser.open(f"http://{server.admin_address}/#{place}")
        self.browser.wait_for_text("Live, updated", "#status")

    def problems(self):
        """What the console complains about, but for answers that say that there is nothing."""
        return [line for line in self.browser.problems() if "404" not in line]

    def chart(self, title):
        return chart(self.browser, title)

    def assert_fits(self):
        inside = self.browser.run("return innerWidth")
        whole = self.browser.run("return document.documentElement.scrollWidth")
        self.assertLessEqual(whole, inside, "wider than the window")

    def assert_draws_what_get_step_says(self, client, run, draws):
        names = [str(draw) for draw in draws]
        whole = [client.get_step(run, draw) for draw in draws]
        steps = [step.totals for step in whole]
        scored = [step.accepted + step.rejected + step.outside_top_k for step in steps]
        for title, line, of in (
            ("Accept rate", "sampled", lambda step: step.accepted),
            ("Accept rate", "expected", lambda step: step.expected_acceptance),
            ("D and D_SIS", "D", lambda step: step.d),
            ("D and D_SIS", "D_SIS", lambda step: step.d_sis),
            ("Log-envelope", "log M", lambda step: step.log_envelope),
            ("Residual mass", "ξ", lambda step: step.residual_mass),
            ("k3", "k3", lambda step: step.k3),
            ("Outside top-K", "outside", lambda step: step.outside_top_k),
        ):
            drawn = self.chart(title)
            self.assertEqual(drawn["names"], names, title)
            for value, step, count in zip(drawn["lines"][line], steps, scored):
                self.assertAlmostEqual(value, of(step) / count, delta=1e-12, msg=f"{title}, {line}")
        drawn = self.chart("Missing by reason")
        self.assertEqual(drawn["names"], names)
        self.assertEqual(list(drawn["lines"]), ["never arrived"])
        for value, step, count in zip(drawn["lines"]["never arrived"], whole, scored):
            missing = step.missing[sis.MissingReason.NEVER_ARRIVED]
            self.assertAlmostEqual(value, missing / (count + missing), delta=1e-12)
        self.assert_draws_the_curve(whole[-1].prefix_curve)

    def assert_draws_the_curve(self, points, of=""):
        """A step's, or an evaluation's; `of` is what the panel says of the draw."""
        drawn = self.chart("Accept rate against k")
        self.assertEqual(drawn["names"], [str(point.top_k) for point in points])
        lines = {f"expected accept rate{of}": "expected_acceptance", "residual mass": "residual_mass"}
        self.assertEqual(set(drawn["lines"]), set(lines))
        for line, name in lines.items():
            for value, point in zip(drawn["lines"][line], points):
                self.assertAlmostEqual(value, getattr(point, name) / point.positions, delta=1e-12, msg=line)

    def assert_tokens_stand_out(self, inspection):
        """The tables of tokens hold what InspectRun says, each token in one, in its order."""
        self.browser.element(".inspected").find_element("xpath", "../div//button").click()
        rows = []
        for kind in ("rejected", "accepted"):
            table = self.browser.run(_TABLE, f"Tokens over-represented among the {kind}")
            self.assertTrue(table, kind)
            rows += table if kind == "rejected" else reversed(table)
        said = [[str(t.accepted), str(t.rejected), str(t.max_error)] for t in inspection.tokens]
        self.assertEqual([row[1:4] for row in rows], said)
        words = [f"word {token.token_id} #{token.token_id}" for token in inspection.tokens]
        self.assertEqual([row[0] for row in rows], words)

    def test_an_empty_server_says_what_to_do(self):
        server, _ = self.start()
        self.open(server)
        self.browser.wait_for_text("No runs yet")
        self.assertIn("sisctl runs create", self.browser.text("main"))
        self.browser.screenshot("empty_runs")
        self.open(server, "/server")
        self.browser.wait_for_text("Serving")
        self.browser.screenshot("empty_server")
        self.open(server, "/run/nowhere")
        self.browser.wait_for_text("There is no run “nowhere” here")
        self.assertEqual(self.problems(), [])

    def test_a_busy_server_is_drawn_as_get_step_has_it(self):
        server, client = self.start(f"--tokenizer={self.tokenizer()}")
        load = TrainingLoad(client, "run-1")
        task = "<b>no markup</b>"
        client.create_run("just-opened", seed=1, vocabulary_size=10, top_k=2, task=task)
        self.open(server)
        self.browser.wait_for_text("just-opened")
        self.assertIn(task, self.browser.text("main"))
        evaluations = [load.step(draw) for draw in DRAWS]

        # It comes to the open page by itself, and by the keyboard to the run.
        totals = client.get_step(load.run, DRAWS[-1]).totals
        scored = totals.accepted + totals.rejected + totals.outside_top_k
        self.browser.wait_for_text(f"{100 * totals.accepted / scored:.1f}%", "main")
        self.browser.screenshot("busy_runs_light")
        self.browser.run("document.querySelector('main a[href=\"#/run/run-1\"]').focus()")
        seen = self.browser.text("#status")
        self.browser.wait("a new look", lambda: self.browser.text("#status") != seen)
        self.browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
        self.browser.wait_for_text("By draw: the last 8", "main")
        self.assert_draws_what_get_step_says(client, load.run, DRAWS)
        self.assert_draws_the_curve(evaluations[-1].prefix_curve)
        self.assertEqual(self.chart("Accept rate against k")["names"], [str(k) for k in PREFIX_CURVE])
        self.assert_tokens_stand_out(client.inspect_run(load.run))

        # The next draw is drawn without a word; one that is evaluated again is the last.
        load.step(20)
        load.step(3)
        self.browser.wait("draw 20", lambda: "20" in self.chart("Accept rate")["names"])
        order = [draw for draw in DRAWS if draw != 3] + [20, 3]
        self.browser.wait("draw 3 again", lambda: self.chart("Accept rate")["names"][-1] == "3")
        self.assert_draws_what_get_step_says(client, load.run, order)

        # Every chart has words and a table for those who can't see it.
        said = self.browser.run(
            "return [...document.querySelectorAll('canvas')].map(c => c.getAttribute('aria-label'))"
        )
        self.assertTrue(said and all(said))
        self.assertRegex(said[0], r"^Accept rate: sampled \d+\.\d%, expected \d+\.\d%$")
        self.browser.element(".panel summary").click()
        self.browser.wait("the table", lambda: self.browser.text(".panel details td") == "3")

        for width, name in ((WIDE, "wide"), (NARROW, "narrow")):
            for dark in (False, True):
                self.browser.look(width, dark=dark)
                self.assert_fits()
                self.browser.screenshot(f"busy_run_{name}_{'dark' if dark else 'light'}")
        self.browser.look(WIDE, dark=False)
        self.open(server, "/server")
        self.browser.wait_for_text("Tokens recorded", "main")
        self.browser.screenshot("busy_server")
        outside = self.browser.run(
            "return performance.getEntriesByType('resource').map(entry => entry.name)"
            ".filter(name => !name.startsWith(location.origin))"
        )
        self.assertEqual(outside, [], "asked of others")
        self.assertEqual(self.problems(), [])

    def test_advice_looks_at_likely_causes_first(self):
        """More slots where they help; where the current policy hardly knows the recorded tokens, what
        makes the two sides talk of different ones."""
        server, client = self.start()
        load = TrainingLoad(client, "run-1")
        load.step(1)
        self.open(server, "/run/run-1")
        residual, outside = ("section[aria-label='Residual mass'] .note",
                             "section[aria-label='Outside top-K'] .note")  # fmt: skip
        self.browser.wait_for_text("record more slots", residual)
        self.browser.wait_for_text("A larger K", outside)
        totals = load.step(2, shift=1).totals
        scored = totals.accepted + totals.rejected + totals.outside_top_k
        self.assertGreater(totals.residual_mass / scored, 0.7)
        self.browser.wait_for_text("shifted by one", residual)
        self.assertNotIn("record more slots", self.browser.text(residual))
        # What is recorded is right, and lists what was sampled.
        self.browser.wait_for_text("A larger K", outside)
        load.step(3)
        self.browser.wait_for_text("record more slots", residual)

        totals = TrainingLoad(client, "run-2", shifted_lists=1).step(1).totals
        scored = totals.accepted + totals.rejected + totals.outside_top_k
        self.assertGreater(totals.outside_top_k / scored, 0.7)
        self.open(server, "/run/run-2")
        self.browser.wait_for_text("lists of other positions", outside)
        self.assertNotIn("makes it smaller", self.browser.text(outside))
        self.assertEqual(self.problems(), [])

    def test_runs_say_how_they_do_the_worst_first(self):
        server, client = self.start()
        client.create_run("a-new", seed=1, vocabulary_size=10, top_k=2)
        load = TrainingLoad(client, "b-shifted")
        for draw in range(4):
            load.step(draw, shift=1)
        self.open(server)
        self.browser.wait_for_text("✖ broken", "main")
        rows = self.browser.run("return [...document.querySelectorAll('tbody tr')].map(row => row.innerText)")
        self.assertRegex(rows[0], r"^b-shifted\s+✖ broken\s+D is [\d.]+ nats per token\.")
        self.assertRegex(rows[1], r"^a-new\s+✓ healthy\s")
        for width, name in ((WIDE, "wide"), (NARROW, "narrow")):
            for dark in (False, True):
                self.browser.look(width, dark=dark)
                self.assert_fits()
                colours = self.browser.run(
                    "return [...document.querySelectorAll('.verdict')].map(v => getComputedStyle(v).color)"
                )
                self.assertEqual(len(set(colours)), 2, "each verdict has its colour")
                self.browser.screenshot(f"verdicts_{name}_{'dark' if dark else 'light'}")
        self.open(server, "/run/b-shifted")
        self.browser.wait_for_text("✖ broken", "main")
        (told, *_) = client.get_run("b-shifted").findings
        said = self.browser.text(".notice")
        for words in (told.reason, told.action, told.rule):
            self.assertIn(words, said)
        self.browser.screenshot("verdict_of_a_run")
        self.open(server, "/run/a-new")
        self.browser.wait_for_text("✓ healthy", "main")
        # Ids, of a server without texts, are no fainter than texts.
        self.open(server, f"/run/b-shifted/{load.names[0]}/0")
        self.browser.wait("its tokens", lambda: "#" in self.browser.text(".tokens .token"))
        faint = "return [...document.querySelectorAll('.token *')].filter(e => getComputedStyle(e).opacity < 1).length"
        self.assertEqual(self.browser.run(faint), 0)
        self.assertEqual(self.browser.problems(), [], "not even an answer that there is nothing")

    def test_the_curve_is_of_the_last_draw_that_has_one(self):
        server, client = self.start()
        load = TrainingLoad(client, "run-1")
        load.step(1, prefix_curve=())
        self.open(server, "/run/run-1")
        self.browser.wait_for_text("By draw: the last one", "main")
        self.browser.wait_for_text("No evaluation has asked for it: prefix_curve=(1, 2, 4, 8), say.", "main")
        asked = load.step(2)
        self.browser.wait("the curve", lambda: self.chart("Accept rate against k")["names"])
        self.assertNotIn("No evaluation has asked for it", self.browser.text("main"))
        self.assert_draws_the_curve(asked.prefix_curve)
        load.step(3, prefix_curve=())
        self.browser.wait_for_text("By draw: the last 3", "main")
        self.assert_draws_the_curve(asked.prefix_curve, of=" of draw 2")
        self.assertEqual(self.problems(), [])

    def test_a_stopped_server_is_said_to_be_silent_until_it_is_back(self):
        server, client = self.start()
        load = TrainingLoad(client, "run-1")
        load.step(1)
        self.open(server, "/run/run-1")
        self.browser.wait_for_text("By draw: the last one", "main")
        listen, admin = server.address, server.admin_address
        server.kill()
        # A new client would share its connection, which doesn't know yet that the server is gone.
        client.close()
        self.browser.wait_for_text("No answer since", "#status")
        self.assertIn("What you see is as of then", self.browser.text(".notice"))
        self.assertIn("Accept rate", self.browser.text("main"), "what was there stays")
        self.browser.screenshot("stopped")

        # The same place, without what was in its memory.
        again, client = self.start(f"--listen={listen}", f"--admin={admin}")
        self.browser.wait_for_text("Live, updated", "#status")
        self.assertEqual(self.browser.text(".notice"), "")
        self.browser.wait_for_text("There is no run “run-1” here", "main")
        self.browser.screenshot("restarted")
        TrainingLoad(client, "run-1").step(1)
        self.browser.wait_for_text("By draw: the last one", "main")
        again.close()


if __name__ == "__main__":
    unittest.main()
