"""The page of sisctl compare --html in a real browser. Screenshots are among the test's outputs."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

SISCTL = pathlib.Path("client/cli/sisctl")
TESTDATA = pathlib.Path("client/recorded/testdata")
SCREENSHOTS = os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR")
LINES_DRAWN = """
return [...document.querySelectorAll("#percentiles canvas")].flatMap(
    canvas => Chart.getChart(canvas).data.datasets).length
"""


class ComparePageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        driver = shutil.which("chromedriver")
        if driver is None:
            raise unittest.SkipTest("there is no chromedriver")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.page = pathlib.Path(folder.name, "compare.html").resolve()
        files = [TESTDATA / f"smollm2_{name}.jsonl" for name in ("4_bit", "float32_temperature_0.7")]
        command = [SISCTL, "compare", *files, f"--html={cls.page}"]
        subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60)
        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                         f"--user-data-dir={folder.name}/profile"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # Bazel gives tests no home, without which Chromium doesn't start.
        service = Service(driver, env={**os.environ, "HOME": folder.name})
        cls.browser = webdriver.Chrome(service=service, options=options)
        cls.addClassCleanup(cls.browser.quit)

    def setUp(self):
        self.browser.get(self.page.as_uri())

    def look(self, width, scheme):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        self.browser.set_window_size(width, 2000)
        if SCREENSHOTS:
            self.browser.save_screenshot(f"{SCREENSHOTS}/compare-{scheme}-{width}.png")

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def test_it_draws_everything_and_says_nothing_in_the_console(self):
        for width, scheme in ((1280, "light"), (1280, "dark"), (420, "light")):
            self.look(width, scheme)
            self.assertIn("at temperature 0.70", self.all("#verdict.fault")[0].text)
            self.assertEqual(len(self.all("#checks tr.fault")), 1)
            self.assertEqual(self.browser.execute_script(LINES_DRAWN), 6)
            self.assertEqual(len(self.all("#positions tbody tr")), 157)
            # Nothing but tables in boxes of their own is wider than the window.
            overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            self.assertLessEqual(self.browser.execute_script(overflow), 0, width)
        self.assertEqual(self.browser.get_log("browser"), [])

    def test_a_sequence_and_a_direction_can_be_chosen(self):
        def text():
            return self.all("#microscope")[0].text

        self.assertIn("Sequence 0: A as behaviour, B as current policy", text())
        Select(self.all("#sequence")[0]).select_by_value("2")
        self.assertIn("Sequence 2", text())
        self.assertIn("The sky is blue", text().replace("\n", ""))
        Select(self.all("#direction")[0]).select_by_value("1")
        self.assertIn("B as behaviour, A as current policy", text())

    def test_a_heading_sorts(self):
        def column(number):
            return [cell.text for cell in self.all(f"#positions td:nth-child({number})")]

        heading = [button for button in self.all("#positions th button") if button.text == "log w"][0]
        for sign in (1, -1):
            self.browser.execute_script("arguments[0].click()", heading)
            values = column(6)
            numbers = [float(value) for value in values if value != "–"]
            self.assertEqual(numbers, sorted(numbers, reverse=sign < 0))
            self.assertEqual(set(values[len(numbers):]), {"–"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
