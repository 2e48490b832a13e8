"""The page of a server that asks who looks, in a real browser."""

import pathlib
import tempfile
import unittest

import sis
from selenium.webdriver.common.keys import Keys
from server.testing.live_server import LiveServer
from tests.page.browser import ELSEWHERE, NARROW, WIDE, Browser

ALICE, BOB, NOBODY = ("alice-" + "a" * 32, "bob-" + "b" * 32, "nobody-" + "c" * 32)

# Whatever the browser keeps of a page, as text.
_KEPT = """
const done = arguments[0];
Promise.all([indexedDB.databases(), window.caches ? caches.keys() : []]).then(kept => done([
    location.href, document.cookie, JSON.stringify(history.state), JSON.stringify(localStorage),
    JSON.stringify(sessionStorage), JSON.stringify(kept), document.documentElement.outerHTML,
    [...document.querySelectorAll("input")].map(input => input.value).join(),
    performance.getEntries().map(entry => entry.name).join(),
].join("\\n")));
"""


class TokenTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)
        cls.browser.driver.set_script_timeout(60)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.identities = pathlib.Path(folder.name) / "identities"
        self.let_in(ALICE, BOB)
        # At an address that other machines reach; at a loopback address nobody is asked.
        flags = (f"--identities={self.identities}", "--reload_interval=1s", "--admin=0.0.0.0:0")
        self.server = LiveServer(*flags, listen="127.0.0.1:0")
        self.addCleanup(self.server.kill)
        for token in (ALICE, BOB):
            with sis.Client(self.server.address, credentials=sis.Credentials(token=token)) as client:
                client.create_run(f"run-of-{token.partition('-')[0]}", seed=1, vocabulary_size=10, top_k=2)
        self.browser.look(WIDE, dark=False)
        self.open()

    def let_in(self, *tokens):
        new = self.identities.with_suffix(".new")
        new.write_text("".join(f"token {token} {token.partition('-')[0]} trainer\n" for token in tokens))
        new.rename(self.identities)

    def open(self, place="/"):
        port = self.server.admin_address.rpartition(":")[2]
        self.browser.open(f"http://127.0.0.1:{port}/#{place}")
        self.browser.wait_for_text("Asks for a token", "#status")

    def give(self, token):
        """As somebody types who has touched nothing yet."""
        focused = self.browser.driver.switch_to.active_element
        self.assertEqual(focused.get_attribute("id"), "token")
        focused.send_keys(token, Keys.ENTER)

    def assert_kept_nowhere(self, token):
        kept = self.browser.driver.execute_async_script(_KEPT)
        self.assertIn("SIS ratio service", kept)
        self.assertNotIn(token, kept)

    def calls(self):
        return self.browser.run(
            "return performance.getEntriesByType('resource').filter(entry => entry.name.includes('/api/')).length"
        )

    def test_it_shows_nothing_and_asks_nothing_until_it_has_a_token(self):
        self.assertNotIn("run-of-", self.browser.text())
        calls = self.calls()
        self.browser.run("window.later = 0; setTimeout(() => { window.later = 1; }, 5000)")
        self.browser.wait("two periods", lambda: self.browser.run("return window.later"))
        self.assertEqual(self.calls(), calls)
        for width, dark, name in ((WIDE, False, "wide_light"), (NARROW, True, "narrow_dark")):
            self.browser.look(width, dark=dark)
            self.browser.screenshot(f"token_{name}")

    def test_who_has_a_token_sees_runs_of_that_identity_only(self):
        for token, own, other in ((ALICE, "run-of-alice", "run-of-bob"), (BOB, "run-of-bob", "run-of-alice")):
            self.give(token)
            self.browser.wait_for_text(own, "main")
            self.browser.wait_for_text("Live, updated", "#status")
            self.assertNotIn(other, self.browser.text())
            self.assertFalse(self.browser.run("return document.querySelector('#token') !== null"))
            # It isn't asked again for another view, but by another page.
            self.browser.run("location.hash = '#/server'")
            self.browser.wait_for_text("The last half hour", "main")
            self.browser.wait_for_text("Serving", "main")
            self.browser.wait_for_text("Live, updated", "#status")
            self.browser.screenshot("token_given")
            self.assert_kept_nowhere(token)
            self.open()
            self.assertNotIn("run-of-", self.browser.text())

    def test_a_run_that_was_opened_before_is_whole_once_there_is_a_token(self):
        with sis.Client(self.server.address, credentials=sis.Credentials(token=ALICE)) as client:
            client.create_run("another-of-alice", seed=1, vocabulary_size=10, top_k=2)
        self.open("/run/run-of-alice")
        self.give(ALICE)
        offered = "return [...document.querySelectorAll('select')].at(-1)?.innerText.split('\\n')"
        self.browser.wait("the other run", lambda: self.browser.run(offered) == ["no other run", "another-of-alice"])
        self.browser.wait_for_text("Largest |log w|", ".inspected")

    def test_no_token_is_asked_for_where_others_could_read_it(self):
        port = self.server.admin_address.rpartition(":")[2]
        self.browser.open(f"http://{ELSEWHERE}:{port}/")
        self.browser.wait_for_text("Asks for a token", "#status")
        self.browser.wait_for_text("plain HTTP from another machine", "main")
        self.assertFalse(self.browser.run("return document.querySelector('input[type=password]') !== null"))
        self.browser.screenshot("token_in_the_clear")

    def test_a_wrong_token_is_said_to_be_wrong_and_the_right_one_helps(self):
        self.give(NOBODY)
        self.browser.wait_for_text("The server doesn't know this token", "main")
        self.browser.screenshot("token_wrong")
        self.assert_kept_nowhere(NOBODY)
        self.assertNotIn("run-of-", self.browser.text())
        self.give(ALICE)
        self.browser.wait_for_text("run-of-alice", "main")
        self.assertNotIn("doesn't know", self.browser.text())

    def test_a_token_that_is_taken_back_is_asked_for_again(self):
        self.give(ALICE)
        self.browser.wait_for_text("run-of-alice", "main")
        self.let_in(BOB)
        self.browser.wait_for_text("Asks for a token", "#status")
        self.assertNotIn("run-of-", self.browser.text())
        self.give(ALICE)
        self.browser.wait_for_text("The server doesn't know this token", "main")


if __name__ == "__main__":
    unittest.main()
