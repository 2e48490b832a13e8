"""The page by axe's rules, of WCAG and of good practice, which a screen reader's user meets.

They are in $SIS_AXE, which tools/rl-environment page installs.
"""

import os
import pathlib
import unittest

import sis
from server.testing.live_server import LiveServer
from tests.page.browser import NARROW, WIDE, Browser
from tests.page.sisctl_web import SisctlWeb
from tests.page.training_load import LENGTH, TrainingLoad

AXE = os.environ.get("SIS_AXE")

_VIOLATIONS = """
const done = arguments[arguments.length - 1];
axe.run().then(
    results => done(results.violations.map(
        ({id, help, nodes}) => `${id}: ${help}: ${nodes.slice(0, 3).map(node => node.html).join(" ")}`)),
    error => done([String(error)]));
"""


@unittest.skipUnless(AXE, "no axe: $SIS_AXE is not set")
class AccessibilityTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.axe = pathlib.Path(AXE).read_text()
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)
        cls.browser.driver.set_script_timeout(120)

    def violations(self):
        self.browser.run(self.axe)
        return self.browser.driver.execute_async_script(_VIOLATIONS)

    def test_a_fault_is_found(self):
        self.browser.open("data:text/html,<html lang=en><title>A</title><main><h1>A</h1><img src=x></main>")
        self.assertIn("image-alt", " ".join(self.violations()))

    def test_no_rule_is_broken(self):
        server = LiveServer()
        self.addCleanup(server.kill)
        page = SisctlWeb(server.address)
        self.addCleanup(page.close)
        with sis.Client(server.address) as client:
            load = TrainingLoad(client, "run-1")
            # The page keeps a sequence's annotation with the evaluation that follows the seal.
            with client.append(load.run, sampling=sis.Sampling("processed")) as stream:
                about = sis.Annotation(prompt="2 + 2 =", text="4", reward=1.0)
                stream.seal(load.names[0], length=LENGTH, annotation=about)
            for draw in range(4):
                load.step(draw, shift=1)
            client.create_run("a-new", seed=1, vocabulary_size=10, top_k=2)
        for place, ready in (
            ("/", "✖ broken"),
            ("/run/run-1", "Worth a closer look"),
            ("/run/run-1", "Do lists stand at the positions of their tokens?"),
            ("/run/a-new", "a-new"),
            ("/server", "Serving"),
            (f"/run/run-1/{load.names[0]}/0/3", "position 3"),
        ):
            self.browser.open(f"{page.url}#{place}")
            self.browser.wait_for_text("Live, updated", "#status")
            if ready.startswith("Do lists"):
                self.browser.element(".diagnosis button").click()
                self.browser.wait("the checks", lambda: self.browser.run("return document.querySelector('.diagnosis details')"))
                self.browser.run("document.querySelector('.diagnosis details').open = true")
            self.browser.wait_for_text(ready, "main")
            self.browser.run("for (const details of document.querySelectorAll('details')) details.open = true")
            for dark in (False, True):
                # `old`: as what is shown while there is no answer.
                for width, old in ((WIDE, False), (NARROW, False), (WIDE, True)):
                    with self.subTest(place=place, width=width, dark=dark, old=old):
                        self.browser.look(width, dark=dark)
                        self.browser.run("document.querySelector('main').classList.toggle('old', arguments[0])", old)
                        self.assertEqual(self.violations(), [])


if __name__ == "__main__":
    unittest.main()
