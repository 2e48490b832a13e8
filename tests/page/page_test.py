"""The page as a person sees it: of an empty, a busy and a stopped server."""

import csv
import datetime
import io
import json
import pathlib
import subprocess
import tempfile
import unittest

import numpy as np
import sis
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from server.testing.live_server import LiveServer
from tests.page.browser import MIDDLE, NARROW, WIDE, Browser
from tests.page.sisctl_web import SISCTL, PageInThisProcess, SisctlWeb
from tests.page.training_load import PREFIX_CURVE, VOCABULARY, TrainingLoad

DRAWS = range(1, 9)

# The lines of the chart of this name: {name: values}, and what its axis shows.
_CHART = """
const panel = [...document.querySelectorAll(".panel")].find(
    panel => panel.getAttribute("aria-label") === arguments[0]);
const chart = panel && Chart.getChart(panel.querySelector("canvas"));
if (!chart) return null;
return {names: chart.data.labels.map(String),
        lines: Object.fromEntries(chart.data.datasets.map(line => [line.label, line.data.map(at => at?.y ?? at)])),
        places: chart.data.datasets.map(line => line.data.map(at => at?.x ?? null))};
"""

# The cells of the rows of the table below this heading.
_TABLE = """
const heading = [...document.querySelectorAll("h3")].find(h3 => h3.textContent === arguments[0]);
let table = heading?.nextElementSibling;
while (table && !table.querySelector("table")) table = table.nextElementSibling;
if (!table) return null;
return [...table.querySelectorAll("tr")].slice(1).map(
    row => [...row.querySelectorAll("td")].map(cell => cell.textContent));
"""

# Keeps the words that a picture is made of, with the edges of each: left, top, right, bottom; and the picture's size.
_RECORD_WORDS = """
window.words = [];
const {fillText} = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
  fillText.call(this, text, x, y, ...rest);
  if (this.canvas.isConnected) return;
  const {a, e, f} = this.getTransform(), left = e / a + x, middle = f / a + y;
  const {actualBoundingBoxAscent: above, actualBoundingBoxDescent: below, width} = this.measureText(text);
  words.push([text, left, middle - above, left + width, middle + below]);
  window.size = [this.canvas.width / a, this.canvas.height / a];
};
"""

# The page looks again after a tenth of its two seconds.
_HASTY = """{
  const {setTimeout} = window;
  window.setTimeout = (then, after) => setTimeout(then, after === 2000 ? 200 : after);
}"""

# Each answer takes half of the time after which a server is called silent. That is 3 s instead of 1, for busy machines.
# `states` are those that the page has said since.
_SLOW = """
const {fetch, setTimeout} = window;
window.setTimeout = (then, after) => setTimeout(then, after === 1000 ? 3000 : after);
window.fetch = async (...asked) => {
  const answer = await fetch(...asked);
  await new Promise(then => setTimeout(then, 1500));
  return answer;
};
window.states = [];
const status = document.getElementById("status");
new MutationObserver(() => states.push(status.dataset.state)).observe(status, {attributes: true, childList: true});
"""


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)
        cls.browser.run_first(_HASTY)
        # Shared by tests that are about one run. Its page calls token 7 "word 7".
        cls.server = LiveServer()
        cls.addClassCleanup(cls.server.kill)
        cls.client = cls.enterClassContext(sis.Client(cls.server.address))
        tokenizer = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())) / "tokenizer.json"
        tokenizer.write_text(json.dumps({"model": {"vocab": {f"word {i}": i for i in range(VOCABULARY)}}}))
        cls.own_page = SisctlWeb(cls.server.address, f"--tokenizer={tokenizer}")
        cls.addClassCleanup(cls.own_page.close)

    def setUp(self):
        self.page = self.own_page
        self.browser.look(WIDE)
        self.browser.driver.get("about:blank")  # no page asks a server any more that is gone
        self.browser.problems()

    def start(self, *flags):
        """A server, a client of it, and its page, which becomes that of the test."""
        server, client = self.start_server(*flags)
        self.open_page(server)
        return server, client

    def start_server(self, *flags, listen=None):
        server = LiveServer(*flags, listen=listen)
        self.addCleanup(server.kill)
        client = self.enterContext(sis.Client(server.address))
        return server, client

    def open_page(self, *servers):
        self.page = PageInThisProcess([server.address for server in servers])
        self.addCleanup(self.page.close)

    def open(self, place="/"):
        self.browser.open(f"{self.page.url}#{place}")
        self.browser.wait_for_text("Live, updated", "#status")

    def choose(self, number, value):
        """Chooses a value of the page's select elements."""
        self.browser.run("const [number, value] = arguments, select = document.querySelectorAll('select')[number];"
                         "select.value = value; select.dispatchEvent(new Event('change'))", number, value)  # fmt: skip

    def draw_runs(self, *names):
        """Runs with one draw each."""
        for name in names:
            TrainingLoad(self.client, name).step(1)

    def problems(self):
        """Returns the console's errors, except those about 404 answers."""
        return [line for line in self.browser.problems() if "404" not in line]

    def chart(self, title):
        """{"names": of the values, "lines": {name: values}, "places": of each line, on an axis of numbers}."""
        drawn = self.browser.run(_CHART, title)
        self.assertIsNotNone(drawn, title)
        return drawn

    def assert_fits(self, *more):
        """Nothing is wider than the window, on a phone either. more: conditions."""
        fits = "document.documentElement.scrollWidth <= innerWidth"
        for width in (MIDDLE, NARROW, WIDE):
            self.browser.look(width)
            # Charts take the window's new width a moment after it has it.
            for condition in (fits, *more):
                self.browser.wait(f"{condition} at {width}", lambda: self.browser.run(f"return {condition}"))

    def assert_draws_what_get_step_says(self, client, run, draws):
        names = [str(draw) for draw in draws]
        whole = [client.list_steps(run, draws=[draw])[draw] for draw in draws]
        totals = [step.totals for step in whole]
        for title, line, name in (
            ("Accept rate", "sampled", "accept_rate"),
            ("Accept rate", "expected", "mean_expected_acceptance"),
            ("D and D_SIS", "D", "mean_d"),
            ("D and D_SIS", "D_SIS", "mean_d_sis"),
            ("Log-envelope", "log M", "mean_log_envelope"),
            ("Residual mass", "ξ", "mean_residual_mass"),
            ("k3", "k3", "mean_k3"),
        ):
            drawn = self.chart(title)
            self.assertEqual(drawn["names"], names, title)
            for value, of_step in zip(drawn["lines"][line], totals, strict=True):
                self.assertAlmostEqual(value, getattr(of_step, name), delta=1e-12, msg=f"{title}, {line}")
        for value, of_step in zip(self.chart("Outside top-K")["lines"]["outside"], totals, strict=True):
            self.assertAlmostEqual(value, of_step.outside_top_k / of_step.scored, delta=1e-12)
        for title, of in (
            ("Accept rate by age", lambda age: age.accept_rate),
            ("D by age", lambda age: age.mean_d),
            ("D_SIS by age", lambda age: age.mean_d_sis),
            ("Effective sample size by age", lambda age: age.effective_sample_size / age.scored),
        ):
            drawn = self.chart(title)
            self.assertEqual((drawn["names"], list(drawn["lines"])), (names, ["1", "2", "3"]))
            for line, *ages in zip(drawn["lines"].values(), *(step.ages for step in whole), strict=True):
                for value, age in zip(line, ages, strict=True):
                    self.assertAlmostEqual(value, of(age), delta=1e-12, msg=f"{title}, {age.name}")
        drawn = self.chart("Missing by reason")
        self.assertEqual(drawn["names"], names)
        self.assertEqual(list(drawn["lines"]), ["never arrived"])
        for value, step in zip(drawn["lines"]["never arrived"], whole, strict=True):
            missing = step.missing[sis.MissingReason.NEVER_ARRIVED]
            self.assertAlmostEqual(value, missing / (step.totals.scored + missing), delta=1e-12)
        self.assert_draws_the_curve(whole[-1].prefix_curve)

    def assert_draws_the_curve(self, points, of=""):
        """A step's, or an evaluation's; `of` is what the panel says of the draw."""
        drawn = self.chart("Accept rate against k")
        self.assertEqual(drawn["names"], [str(point.top_k) for point in points])
        lines = {f"expected accept rate{of}": "expected_acceptance", "residual mass": "residual_mass"}
        self.assertEqual(set(drawn["lines"]), set(lines))
        for line, name in lines.items():
            for value, point in zip(drawn["lines"][line], points, strict=True):
                self.assertAlmostEqual(value, getattr(point, name) / point.positions, delta=1e-12, msg=line)

    def assert_tokens_stand_out(self, inspection):
        """The tables of tokens hold what InspectRun says, each token in one, in its order."""
        # In one script: the page may draw it again at any time.
        self.browser.run("let before = document.querySelector('.inspected');"
                         "do before = before.previousElementSibling; while (before.tagName !== 'DIV');"
                         "before.querySelector('button').click()")  # fmt: skip
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
        self.open()
        self.browser.wait_for_text("No runs yet")
        self.assertIn("client.create_run", self.browser.text("main"))
        self.open("/server")
        self.browser.wait_for_text("Serving")
        self.open("/run/nowhere")
        self.browser.wait_for_text("There is no run “nowhere” here")
        self.assertEqual(self.problems(), [])

    def test_a_busy_server_is_drawn_as_get_step_has_it(self):
        client = self.client
        load = TrainingLoad(client, "run-1")
        task = "<b>no markup</b>"
        client.create_run("just-opened", seed=1, vocabulary_size=10, top_k=2, task=task)
        self.open()
        self.browser.wait_for_text("just-opened")
        self.assertIn(task, self.browser.text("main"))
        evaluations = [load.step(draw) for draw in DRAWS]

        # It comes to the open page by itself, and by the keyboard to the run.
        totals = client.list_steps(load.run, draws=[DRAWS[-1]])[DRAWS[-1]].totals
        self.browser.wait_for_text(f"{100 * totals.accept_rate:.1f}%", "main")
        self.browser.run("document.querySelector('main a[href=\"#/run/run-1\"]').focus()")
        seen = self.browser.text("#status")
        self.browser.wait("a new look", lambda: self.browser.text("#status") != seen)
        # To whatever has the focus then: the page draws its list again at any time.
        ActionChains(self.browser.driver).send_keys(Keys.ENTER).perform()
        self.browser.wait_for_text("By draw: all 8", "main")
        self.assert_draws_what_get_step_says(client, load.run, DRAWS)
        self.assert_draws_the_curve(evaluations[-1].prefix_curve)
        self.assertEqual(self.chart("Accept rate against k")["names"], [str(k) for k in PREFIX_CURVE])
        self.assert_tokens_stand_out(client.inspect_run(load.run))

        # The next draw is drawn without a word; one that is evaluated again stays where it is.
        load.step(3)
        load.step(20)
        order = [*DRAWS, 20]
        self.browser.wait("draw 20", lambda: self.chart("Accept rate")["names"][-1] == "20")
        self.assert_draws_what_get_step_says(client, load.run, order)

        # Every chart has words and a table for those who can't see it.
        said = self.browser.run(
            "return [...document.querySelectorAll('canvas')].map(c => c.getAttribute('aria-label'))"
        )
        self.assertTrue(said and all(said))
        self.assertRegex(said[0], r"^Accept rate: sampled \d+\.\d%, expected \d+\.\d%$")
        self.browser.element(".panel summary").click()
        self.browser.wait("the table", lambda: self.browser.text(".panel details td") == "20")

        self.assert_fits()
        self.open("/server")
        self.browser.wait_for_text("Tokens recorded", "main")
        outside = self.browser.run(
            "return performance.getEntriesByType('resource').map(entry => entry.name)"
            ".filter(name => !name.startsWith(location.origin))"
        )
        self.assertEqual(outside, [], "asked of others")
        self.assertEqual(self.problems(), [])

    def test_advice_looks_at_likely_causes_first(self):
        """More slots where they help; where the current policy hardly knows the recorded tokens, what
        makes the two sides talk of different ones."""
        load = TrainingLoad(self.client, "advised")
        load.step(1)
        self.open("/run/advised")
        residual, outside = ("section[aria-label='Residual mass'] .note",
                             "section[aria-label='Outside top-K'] .note")  # fmt: skip
        self.browser.wait_for_text("record more slots", residual)
        self.browser.wait_for_text("A larger K", outside)
        totals = load.step(2, shift=1).totals
        self.assertGreater(totals.mean_residual_mass, 0.7)
        self.browser.wait_for_text("shifted by one", residual)
        self.assertNotIn("record more slots", self.browser.text(residual))
        # The records are correct, and list the sampled tokens.
        self.browser.wait_for_text("A larger K", outside)
        load.step(3)
        self.browser.wait_for_text("record more slots", residual)

        totals = TrainingLoad(self.client, "advised-too", shifted_lists=1).step(1).totals
        self.assertGreater(totals.outside_top_k / totals.scored, 0.7)
        self.open("/run/advised-too")
        self.browser.wait_for_text("lists of other positions", outside)
        self.assertNotIn("makes it smaller", self.browser.text(outside))
        self.assertEqual(self.problems(), [])

    def test_runs_say_how_they_do_the_worst_first(self):
        server, client = self.start()
        client.create_run("a-new", seed=1, vocabulary_size=10, top_k=2)
        load = TrainingLoad(client, "b-shifted")
        for draw in range(4):
            load.step(draw, shift=1)
        self.open()
        self.browser.wait_for_text("✖ broken", "main")
        rows = self.browser.run("return [...document.querySelectorAll('tbody tr')].map(row => row.innerText)")
        self.assertRegex(rows[0], r"^b-shifted\s+sums, grpo, tiny\s+✖ broken\s+D is [\d.]+ nats per token\.")
        self.assertRegex(rows[1], r"^a-new\s+✓ healthy\s")
        self.assert_fits("new Set([...document.querySelectorAll('.verdict')].map(v => getComputedStyle(v).color)).size === 2")
        self.open("/run/b-shifted")
        self.browser.wait_for_text("✖ broken", "main")
        (told, *_) = client.get_run("b-shifted").findings
        said = self.browser.text(".notice")
        for words in (told.reason, told.action, told.rule):
            self.assertIn(words, said)
        self.open("/run/a-new")
        self.browser.wait_for_text("✓ healthy", "main")
        # Ids, of a server without texts, are no fainter than texts.
        self.open(f"/run/b-shifted/{load.names[0]}/0")
        self.browser.wait("its tokens", lambda: "#" in self.browser.text(".tokens .token"))
        faint = "return [...document.querySelectorAll('.token *')].filter(e => getComputedStyle(e).opacity < 1).length"
        self.assertEqual(self.browser.run(faint), 0)
        self.assertEqual(self.browser.problems(), [], "not even an answer that there is nothing")

    def test_a_run_is_diagnosed_in_the_words_of_sisctl(self):
        load = TrainingLoad(self.client, "shifted")
        for draw in range(4):
            load.step(draw, shift=1)
        self.client.create_run("empty", seed=1, vocabulary_size=10, top_k=2)
        command = [SISCTL, "diagnose", "shifted", f"--server={self.server.address}", "--output=json"]
        report = json.loads(subprocess.run(command, capture_output=True, timeout=60).stdout)
        self.open("/run/shifted")
        self.browser.element(".diagnosis button").click()
        self.browser.wait_for_text(report["verdict"][0], ".diagnosis")
        self.browser.run("document.querySelector('.diagnosis details').open = true")
        said, page = self.browser.text(".diagnosis"), self.browser.text("main")
        for sentence in (*report["verdict"], report["ages"]["text"]):
            self.assertIn(sentence, said)
        for finding in report["findings"]:
            self.assertEqual(page.count(finding["reason"]), 1, "said once, not twice")
            self.assertIn(finding["action"], page)
        self.assertEqual([limit["max_staleness"] for limit in report["ages"]["limits"]], [None, 2, 1])
        self.assertRegex(said, r"none\s+0\.0%\s")
        self.assertRegex(said, r"1\s+66\.7%\s")
        words = {"fault": "✖ fault", "clear": "✓ ok", "untested": "– not asked"}
        for check in report["checks"]:
            self.assertIn(f"{words[check['outcome']]}: {check['question']}", said)
        self.assert_fits()
        self.assertEqual(self.browser.problems(), [])
        self.open("/run/empty")
        self.browser.element(".diagnosis button").click()
        self.browser.wait_for_text("nothing has been evaluated", ".diagnosis")

    def saved(self, title, kind, run="long-1"):
        """The bytes of the file that a chart's button saves."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.browser.keep_downloads(folder)
        self.browser.run("document.querySelector(arguments[0]).click()", f"[aria-label='Save {title} as {kind}']")
        suffix = f".{kind.lower()}"

        def whole():
            # While it writes to another file, the browser keeps the name with one that is empty.
            paths = list(pathlib.Path(folder).iterdir())
            return paths if [path.suffix for path in paths] == [suffix] and paths[0].stat().st_size else []

        self.browser.wait(f"{title} as {kind}", whole)
        (path,) = whole()
        self.assertEqual(path.name, f"{run}_{title.lower().replace(' ', '_')}{suffix}")
        return path.read_bytes()

    def test_all_draws_stay_on_the_page_and_can_be_saved(self):
        client = self.client
        load = TrainingLoad(client, "long-1")
        other = TrainingLoad(client, "long-2")
        draws = 100
        for draw in range(draws):  # a collapse at the 30th, long before the last ones
            load.step(draw, prefix_curve=(), shift=30 <= draw < 40)
        for draw in range(10):
            other.step(2 * draw, prefix_curve=())
        self.open("/run/long-1")
        self.browser.wait_for_text(f"By draw: all {draws}", "main")
        steps = client.list_steps(load.run)
        drawn = self.chart("Accept rate")
        self.assertEqual(drawn["lines"]["sampled"], [step.totals.accept_rate for step in steps.values()])
        self.assertEqual(drawn["places"][0], list(range(draws)))
        self.assertEqual(drawn["names"], [str(draw) for draw in range(draws)])
        collapsed = [steps[draw].totals.accept_rate for draw in range(30, 40)]
        self.assertLess(max(collapsed), min(drawn["lines"]["sampled"][-50:]), "the collapse is seen")
        self.assertEqual(sum(self.chart("Tokens")["lines"]["evaluated"][-4:]), 4 * 482)

        self.choose(0, "time")
        self.assertEqual(self.chart("Accept rate")["places"][0], [step.ended_at for step in steps.values()])
        self.browser.wait("its offer", lambda: self.browser.run("return document.querySelector('option[value=long-2]')"))
        self.choose(1, "long-2")
        self.browser.wait("long-2", lambda: "long-2: D" in self.chart("D and D_SIS")["lines"])
        beside = client.list_steps(other.run)
        drawn = self.chart("D and D_SIS")
        self.assertEqual(list(drawn["lines"]), ["long-1: D", "long-1: D_SIS", "long-2: D", "long-2: D_SIS"])
        self.assertEqual(drawn["lines"]["long-2: D"], [step.totals.mean_d for step in beside.values()])
        self.assertEqual(drawn["places"][2], [step.ended_at for step in beside.values()])
        # The address has what was chosen.
        self.browser.open(self.browser.run("return location.href"))
        self.browser.wait_for_text("Live, updated", "#status")
        self.browser.wait("both runs", lambda: "long-2: D" in self.chart("D and D_SIS")["lines"])
        self.assertEqual(self.chart("D and D_SIS")["places"][2], drawn["places"][2])
        self.assert_fits()
        rows = list(csv.DictReader(io.StringIO(self.saved("D and D_SIS", "CSV").decode(), newline="")))
        expected = [(run, *kept) for run, kept in (("long-1", steps), ("long-2", beside)) for kept in kept.items()]
        for row, (run, draw, step) in zip(rows, expected, strict=True):
            self.assertEqual((row["run"], int(row["draw"])), (run, draw))
            self.assertEqual((float(row["D"]), float(row["D_SIS"])), (step.totals.mean_d, step.totals.mean_d_sis))
            self.assertAlmostEqual(datetime.datetime.fromisoformat(row["ended"].replace("Z", "+00:00")).timestamp(),
                                   step.ended_at, delta=1.1e-3)  # fmt: skip
        saved = json.loads(self.saved("D and D_SIS", "JSON"))
        self.assertEqual((saved["title"], saved["unit"]), ("D and D_SIS", "nats per token"))
        self.assertEqual([str(row["D"]) for row in saved["values"]], [row["D"] for row in rows])
        # A chart of something else than draws.
        bounds = [row["w"] for row in json.loads(self.saved("Ratios beyond bounds", "JSON"))["values"]]
        self.assertIn("> 1.2", bounds)
        # Cells of two draws.
        rates = json.loads(self.saved("Accept rate over age", "JSON"))["values"]
        tokens = json.loads(self.saved("Tokens over age", "JSON"))["values"]
        self.assertEqual([rates[0]["Draw"], rates[-1]["Draw"]], ["0 to 1", "98 to 99"])
        for i, (rate, count) in enumerate(zip(rates, tokens, strict=True)):
            for name, *ages in zip("123", steps[2 * i].ages, steps[2 * i + 1].ages, strict=True):
                scored = sum(age.scored for age in ages)
                self.assertEqual(rate[name], sum(age.accepted for age in ages) / scored)
                self.assertEqual(count[name], scored / 960)
        png = self.saved("D and D_SIS", "PNG")
        self.assertTrue(png.startswith(b"\x89PNG\r\n"))
        self.assertGreater(len(png), 5000)
        self.assertEqual(self.problems(), [])

    def test_a_saved_picture_has_all_of_its_words(self):
        one, other = ("one-" + "a" * 96, "other-" + "b" * 40)
        self.draw_runs(one, other)
        self.open(f"/run/{one}?beside={other}")
        self.browser.wait("both", lambda: f"{other}: D" in self.chart("D and D_SIS")["lines"])
        self.browser.run(_RECORD_WORDS)
        self.assertTrue(self.saved("D and D_SIS", "PNG", run=one).startswith(b"\x89PNG\r\n"))
        words, width, height = self.browser.run("return [words, ...size]")
        legend = [f"{run}: {line}" for run in (one, other) for line in ("D", "D_SIS")]
        self.assertLessEqual({f"{one} D and D_SIS (nats per token)", *legend}, {text for text, *_ in words})
        for i, (text, left, top, right, bottom) in enumerate(words):
            self.assertTrue(0 <= left < right <= width and 0 <= top < bottom <= height, text)
            for before, begin, above, end, below in words[:i]:
                self.assertTrue(right <= begin or end <= left or bottom <= above or below <= top, f"{text} on {before}")

    def test_many_runs_are_sorted_filtered_and_paged(self):
        server, client = self.start("--metric_runs=4")
        load = TrainingLoad(client, "evaluated")
        load.step(1)
        for number in range(120):
            client.create_run(f"run-{number:03}", seed=1, vocabulary_size=10, top_k=2, task=f"task {number % 7}")
        self.open()
        self.browser.wait_for_text("1 to 50 of 121", "main")
        names = lambda: self.browser.run(  # noqa: E731
            "return [...document.querySelectorAll('tbody tr a')].map(link => link.textContent)"
        )
        self.assertEqual(names(), ["evaluated", *(f"run-{number:03}" for number in range(49))])
        following = "[...document.querySelectorAll('button')].find(b => b.textContent === 'Next').click()"
        self.browser.run(following)
        self.browser.wait("the next ones", lambda: names() == [f"run-{number:03}" for number in range(49, 99)])
        self.browser.run(following)
        self.browser.wait_for_text("101 to 121 of 121", "main")
        # The newest have metrics of their own, and the page says who has none.
        shared = self.browser.text("main").count("no metrics of its own")
        self.assertEqual(shared, 21 - 4)
        self.browser.element("input[type=search]").send_keys("TASK 3")
        self.browser.wait("those of task 3", lambda: names() == [f"run-{number:03}" for number in range(3, 120, 7)])
        self.assertNotIn("of 121", self.browser.text("main"))
        self.browser.element("input[type=search]").send_keys(" and no other")
        self.browser.wait_for_text("No run has “TASK 3 and no other” in its name, task, algorithm or model.", "main")
        self.browser.element("input[type=search]").send_keys(*[Keys.BACKSPACE] * 30)
        self.browser.wait_for_text("1 to 50 of 121", "main")
        self.choose(0, "most memory first")
        self.browser.wait("the largest", lambda: names()[0] == "evaluated")
        asked = self.browser.run(
            "return performance.getEntriesByType('resource').filter(entry => entry.name.includes('/api/GetStep')).length"
        )
        self.assertEqual(asked, 0, "one call has all of them")
        # All of a row is inside of the window.
        self.assert_fits(
            "[...document.querySelector('tbody tr').querySelectorAll('td')].every("
            "cell => cell.getBoundingClientRect().right <= innerWidth && cell.getBoundingClientRect().left >= 0)"
        )
        self.assertRegex(self.browser.text("tbody tr"), r"\d+\.\d%")
        self.assertEqual(self.problems(), [])

    def test_a_token_has_a_link_and_a_cut_sequence_says_where(self):
        server, client = self.start("--inspected_bytes=1048576")
        run = client.create_run("run-1", seed=1, vocabulary_size=4, top_k=4)
        length = 4096
        tokens = np.arange(length, dtype=np.int32) % 4
        log_probs = np.full((length, 4), np.log(0.25), np.float32)
        ids = np.broadcast_to(np.arange(4, dtype=np.int32), log_probs.shape)
        record = sis.canonical(ids, log_probs, tokens, log_probs[:, 0], 4)
        with client.append(run, sampling=sis.Sampling("processed")) as stream:
            stream.block("long", first_position=0, policy_version=0, **record._asdict())
            about = sis.Annotation(prompt="2 + <b>2</b> =", text="four", group="sums")
            stream.seal("long", length=length, annotation=about)
            stream.seal("long", length=length, annotation=sis.Annotation(reward=0.25))
        records = client.fetch_top_k(run, ["long"])
        client.evaluate(run, records, draw=1, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs)
        kept = client.inspect_sequence(run, "long")
        self.assertEqual((len(kept.decisions), kept.cut_end), (kept.cut_begin, length))
        self.assertEqual(kept.annotation, about._replace(reward=0.25))
        self.open("/run/run-1/long/0/3")
        self.browser.wait_for_text("position 3", "aside")
        self.browser.wait_for_text(f"This sequence is cut: positions {kept.cut_begin} to {length - 1}", ".notice")
        self.assertEqual(self.browser.text(".annotation").split("\n"), [
            "reward", "0.25", "group", "sums", "prompt", "2 + <b>2</b> =", "text", "four"])  # fmt: skip
        self.browser.element(".tokens").send_keys(Keys.ARROW_RIGHT)
        self.browser.wait_for_text("position 4", "aside")
        self.assertTrue(self.browser.run("return location.hash").endswith("/run/run-1/long/0/4"))
        self.browser.driver.refresh()
        self.browser.wait_for_text("position 4", "aside")
        self.open(f"/run/run-1/long/0/{length - 1}")
        self.browser.wait_for_text(f"Nothing is kept of position {length - 1}.", "aside")
        self.assertEqual(self.problems(), [])

    def test_what_is_not_in_the_loss_is_told_from_what_no_policy_generated(self):
        """By the mask that a trainer gives with its evaluation."""
        client = self.client
        run = client.create_run("masked", seed=1, vocabulary_size=VOCABULARY, top_k=4)
        length, tool, unused = 40, slice(20, 30), slice(5, 8)
        ids = np.broadcast_to(np.arange(4, dtype=np.int32), (length, 4))
        log_probs = np.full(ids.shape, np.log(0.25), np.float32)
        record = sis.canonical(ids, log_probs, np.arange(length) % 4, log_probs[:, 0], 4)._asdict()
        with client.append(run, sampling=sis.Sampling("processed")) as stream:
            for part in (slice(0, tool.start), slice(tool.stop, length)):
                rows = {name: array[part] for name, array in record.items()}
                stream.block("s", first_position=part.start, policy_version=0, **rows)
        mask = np.ones(length, bool)
        mask[tool] = mask[unused] = False
        evaluation = client.evaluate(
            run, [sis.Slice("s", length=length)], draw=1, log_probs=log_probs, sampled_log_probs=log_probs[:, 0],
            options=sis.EvaluateOptions(mask=mask),
        )  # fmt: skip
        self.assertEqual((evaluation.totals.masked, evaluation.totals.missing), (13, 0))
        self.open(f"/run/masked/s/0/{unused.start - 1}")
        self.browser.wait_for_text("not in the loss 3", ".facts")
        self.assertIn("not generated 10", self.browser.text(".facts"))
        self.assertEqual(self.browser.text(".tokens .absent"), "10 × not generated by the policy")
        masked = self.browser.run(
            "return [...document.querySelectorAll('.tokens .masked')].map("
            "({dataset, title, innerText}) => [dataset.index, title, innerText])"
        )
        self.assertEqual(masked, [[str(i), f"{i}: not in the loss", f"word {i % 4}"] for i in range(5, 8)])
        self.assertIn("not in the loss: the trainer's mask is 0", self.browser.text(".key"))
        # They are chosen as others are, and have their record.
        self.browser.element(".tokens").send_keys(Keys.ARROW_RIGHT)
        self.browser.wait_for_text(f"position {unused.start}: word 1 #1", "aside")
        said = self.browser.text("aside")
        for words in ("Not in the loss: the trainer's mask leaves it out", "log q\n−1.386", "word 3 #3"):
            self.assertIn(words, said)
        for absent in ("log w", "Accepted"):
            self.assertNotIn(absent, said)
        for _ in range(3):
            self.browser.element(".tokens").send_keys(Keys.ARROW_RIGHT)
        self.browser.wait_for_text(f"position {unused.stop}: word 0 #0", "aside")
        self.assertIn("Accepted: ", self.browser.text("aside"))
        self.assert_fits()
        # Not known by their colour alone.
        looks = [self.browser.run(
            "const {backgroundImage, borderBottomColor} = getComputedStyle(document.querySelector(arguments[0]));"
            "return [backgroundImage, borderBottomColor]", f".tokens {kind}") for kind in (".masked", ".accepted")]  # fmt: skip
        self.assertEqual([image != "none" for image, _ in looks], [True, False])
        self.assertEqual([colour == "rgba(0, 0, 0, 0)" for _, colour in looks], [True, False])
        self.assertEqual(self.problems(), [])

    def test_a_server_that_hangs_and_a_sisctl_that_has_ended_are_reported(self):
        """A server that hangs long before its calls are given up."""
        self.draw_runs("hangs")
        for silence, notice in (
            (lambda: self.browser.run("window.fetch = () => new Promise(() => {})"), "The server gives no answer"),
            (lambda: self.page.close(), "sisctl web, which serves this page, gives no answer"),
        ):
            self.open_page(self.server)
            self.open("/run/hangs")
            self.browser.wait_for_text("By draw: one so far", "main")
            silence()
            self.browser.wait_for_text("No answer since", "#status")
            self.browser.wait_for_text(notice, ".notice")
            self.assertIn("Accept rate", self.browser.text("main"), "what was there stays")

    def test_a_slow_server_that_answers_is_not_reported_as_silent(self):
        """The page sends three requests for a run next to another, one after another. Together they take
        longer than the time after which a server counts as silent."""
        self.draw_runs("slow-1", "slow-2")
        self.open()
        self.browser.run(_SLOW)
        # Calls that began before keep their limits.
        self.browser.wait("an answer", lambda: self.browser.run("return states.includes('live')"))
        self.browser.run("states.length = 0; location.hash = '#/run/slow-1?beside=slow-2'")
        self.browser.wait("both runs", lambda: self.browser.run("return states.includes('live')"))
        self.assertEqual(len(self.chart("D and D_SIS")["lines"]), 4)
        self.assertNotIn("silent", self.browser.run("return states"))

    def test_several_servers_are_one_page_and_a_silent_one_is_named(self):
        servers = [self.start_server()[0] for _ in range(2)]
        addresses = [server.address for server in servers]
        client = self.enterContext(sis.Client(addresses))
        load = TrainingLoad(client, "run-1")
        load.step(1)
        self.open_page(*servers)
        self.open("/run/run-1")
        self.browser.wait_for_text("By draw: one so far", "main")
        kept = self.browser.run(_TABLE, "Sequences")
        self.assertLessEqual(set(load.names), {row[0] for row in kept}, "of both servers")
        self.open("/server")
        self.browser.wait("both servers", lambda: self.browser.text("main").count("Serving") == 2)
        self.assertEqual(self.problems(), [])
        servers[1].kill()
        for place in ("/server", "/", "/run/run-1"):
            self.open(place)
            self.browser.wait_for_text(f"No answer from {addresses[1]}.", ".notice")
            self.browser.wait_for_text("Live, updated", "#status")
        self.browser.wait_for_text("By draw: one so far", "main")
        self.browser.wait_for_text("prompt-", ".inspected")

    def test_a_user_without_a_token_is_refused(self):
        identities = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "identities"
        identities.write_text(f"token {'a' * 32} alice trainer\n")
        self.start(f"--identities={identities}")
        self.browser.open(self.page.url)
        self.browser.wait_for_text("Refused", "#status")
        self.browser.wait_for_text("The server can't answer this", ".notice")

    def test_what_a_run_holds_is_exported(self):
        load = TrainingLoad(self.client, "exported")
        load.step(1)
        self.open("/run/exported")
        self.browser.wait_for_text("By draw: one so far", "main")
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.browser.keep_downloads(folder)
        self.browser.element("[aria-label='Export as CSV']").click()
        self.browser.wait_for_text("Saved as exported.csv", ".export")
        path = pathlib.Path(folder) / "exported.csv"
        self.browser.wait("the file", lambda: path.exists() and path.stat().st_size)
        rows = list(csv.DictReader(io.StringIO(path.read_text(), newline="")))
        self.assertEqual(len(rows), len(load.records))
        self.assertEqual({row["sequence"] for row in rows}, set(load.names))

    def test_the_curve_is_of_the_last_draw_that_has_one(self):
        load = TrainingLoad(self.client, "curved")
        load.step(1, prefix_curve=())
        self.open("/run/curved")
        self.browser.wait_for_text("By draw: one so far", "main")
        self.browser.wait_for_text("No evaluation has asked for it: prefix_curve=(1, 2, 4, 8), say.", "main")
        asked = load.step(2)
        self.browser.wait("the curve", lambda: self.chart("Accept rate against k")["names"])
        self.assertNotIn("No evaluation has asked for it", self.browser.text("main"))
        self.assert_draws_the_curve(asked.prefix_curve)
        load.step(3, prefix_curve=())
        self.browser.wait_for_text("By draw: all 3", "main")
        self.assert_draws_the_curve(asked.prefix_curve, of=" of draw 2")
        self.assertEqual(self.problems(), [])

    def test_a_stopped_server_is_reported_as_silent_until_it_answers(self):
        server, client = self.start()
        load = TrainingLoad(client, "run-1")
        load.step(1)
        self.open("/run/run-1")
        self.browser.wait_for_text("By draw: one so far", "main")
        listen = server.address
        server.kill()
        # A new client would share its connection, which doesn't know yet that the server is gone.
        client.close()
        self.browser.wait_for_text("No answer since", "#status")
        self.assertIn("What you see is as of then", self.browser.text(".notice"))
        self.assertIn("Accept rate", self.browser.text("main"), "what was there stays")

        # The same place, without what was in its memory.
        again, client = self.start_server(listen=listen)
        self.browser.wait_for_text("Live, updated", "#status")
        self.assertEqual(self.browser.text(".notice"), "")
        self.browser.wait_for_text("There is no run “run-1” here", "main")
        TrainingLoad(client, "run-1").step(1)
        self.browser.wait_for_text("By draw: one so far", "main")
        again.close()


if __name__ == "__main__":
    unittest.main()
