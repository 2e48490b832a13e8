"""Debian's Chromium, without a screen."""

import os
import shutil
import tempfile
import time
import unittest

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

WIDE, MIDDLE, NARROW = 1280, 768, 390
_HEIGHT = 900
# The machine may be busy.
_PATIENCE_SECONDS = 60


class Browser:
    """One window, which close() ends. Skips the test where there is no Chromium."""

    def __init__(self):
        driver = shutil.which("chromedriver")
        if driver is None:
            raise unittest.SkipTest("there is no chromedriver")
        self._profile = tempfile.TemporaryDirectory()
        options = webdriver.ChromeOptions()
        for argument in (
            "--headless=new",
            "--no-sandbox",  # as root, and inside Bazel's own
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            f"--user-data-dir={self._profile.name}",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # Bazel gives tests no home, without which Chromium doesn't start.
        service = Service(driver, env={**os.environ, "HOME": self._profile.name})
        self.driver = webdriver.Chrome(service=service, options=options)
        self.look(WIDE)

    def keep_downloads(self, folder):
        """Saves downloads in `folder` from now on."""
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})

    def close(self):
        self.driver.quit()
        self._profile.cleanup()

    def look(self, width, *, dark=False):
        """Sets the window's width and the person's colour scheme from now on."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": _HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def run_first(self, script):
        """Runs a script in each document from now on, before the document's own."""
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})

    def open(self, address):
        self.driver.get("about:blank")
        self.driver.get(address)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def text(self, selector="body"):
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def element(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def wait(self, what, condition):
        """Until condition() is true."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"waited in vain for {what}; the page says:\n{self.text()}")
            time.sleep(0.1)

    def wait_for_text(self, words, selector="body"):
        self.wait(f"{words!r} in {selector}", lambda: words in self.text(selector))

    def problems(self):
        """Returns the console's errors since the last call."""
        entries = self.driver.get_log("browser")
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]
