"""sisctl at a terminal: colours, what fits, and the key that ends `top`."""

import fcntl
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import termios
import time
import unittest

import numpy as np

import sis
from server.testing.live_server import LiveServer

SISCTL = pathlib.Path("client/cli/sisctl")
RUN = "qwen3-4b-reasoning-grpo-2026-11-25-seed-1"
SEQUENCE = "prompt-0123456789abcdef-response-07"
LENGTH, VOCABULARY, TOP_K = 40, 16, 4
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PATIENCE = 20  # seconds, for what comes at once


class Terminal:
    """A terminal on which a program runs. What it shows is read by read() and wait()."""

    def __init__(self, command, columns=120, lines=50, **environment):
        self.ours, self.its = pty.openpty()
        fcntl.ioctl(self.its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = self.settings()
        its = self.its
        variables = {**os.environ, "TERM": "xterm", **environment}
        if "NO_COLOR" not in environment:
            variables.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            command, stdin=its, stdout=its, stderr=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(its, termios.TIOCSCTTY, 0),
            env=variables,
        )  # fmt: skip
        os.set_blocking(self.ours, False)
        self.shown = b""

    def settings(self):
        return termios.tcgetattr(self.its)

    def watches(self):
        return not self.settings()[3] & (termios.ICANON | termios.ECHO)

    def read(self):
        try:
            self.shown += os.read(self.ours, 1 << 16)
        except BlockingIOError:
            time.sleep(0.01)

    def until(self, condition):
        """Reads on until the condition holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.read()
            if time.monotonic() > deadline:
                raise TimeoutError(self.shown.decode())

    def wait(self):
        """The exit status, after all that was shown has been read."""
        self.until(lambda: self.process.poll() is not None)
        size = -1
        while size != len(self.shown):
            size = len(self.shown)
            self.read()
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self.its)


class TerminalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        server = LiveServer()
        cls.addClassCleanup(server.close)
        cls.address = server.address
        with sis.Client(server.address, timeout=30) as client:
            run = client.create_run(
                RUN, seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, task="arithmetic", model="qwen3-4b"
            )
            client.create_run("fresh", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
            log_probs = np.log(np.full((LENGTH, VOCABULARY), 1 / VOCABULARY, np.float32))
            ids = np.broadcast_to(np.arange(VOCABULARY), log_probs.shape)
            record = sis.canonical(ids, log_probs, np.zeros(LENGTH, int), log_probs[:, 0], TOP_K)
            with client.append(run, sampling=sis.Sampling("raw")) as stream:
                stream.block(SEQUENCE, first_position=0, policy_version=1, **record._asdict())
            records = client.fetch_top_k(run, [SEQUENCE])
            for draw in range(70):
                client.evaluate(
                    run, records, draw=draw, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs,
                    prefix_curve=(1, 4),
                )  # fmt: skip

    def terminal(self, *words, address=None, **options):
        terminal = Terminal([SISCTL, f"--server={address or self.address}", *words], **options)
        self.addCleanup(terminal.close)
        return terminal

    def shown(self, *words, **options):
        terminal = self.terminal(*words, **options)
        self.assertEqual(terminal.wait(), 0)
        return terminal.shown.decode().replace("\r\n", "\n")

    def piped(self, *words):
        command = [SISCTL, f"--server={self.address}", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    def test_lines_fit(self):
        commands = [
            ("runs", "list"), ("sequences", RUN), ("step", RUN, "latest"), ("top", "--once"), ("top", "--once", RUN),
            ("show", RUN), ("show", RUN, SEQUENCE), ("history", RUN),
        ]  # fmt: skip
        for words in commands:
            whole = self.piped(*words)
            for columns in (80, 120, 200):
                lines = COLOUR.sub("", self.shown(*words, columns=columns)).splitlines()
                self.assertGreater(len(lines), 1)
                for line in lines:
                    self.assertLessEqual(len(line), columns, (words, line))
                # Where there is room nothing is left out.
                if columns == 200:
                    self.assertEqual(
                        {word for line in lines for word in line.split() if word.isupper()},
                        {word for word in whole.split() if word.isupper()},
                    )

    def test_what_is_piped_is_whole(self):
        head, row, _ = self.piped("runs", "list").splitlines()  # the worst first
        columns = "RUN VERDICT INCARNATION VERSION SEQUENCES POSITIONS BYTES LAST DRAW OWNER TASK"
        self.assertEqual(head.split(), columns.split())
        self.assertEqual(row.split()[0], RUN)
        narrow = self.shown("runs", "list", columns=80)
        self.assertNotIn("OWNER", narrow)
        self.assertIn("VERDICT", narrow)
        self.assertRegex(narrow, r"\nqwen3-4b-rea…\S+seed-1 ")

    def test_colours(self):
        # Three quarters of the probability are outside this run's sets.
        look, healthy = "\x1b[33m! look\x1b[0m", "\x1b[32mhealthy\x1b[0m"
        for words, colours in (
            (("runs", "list"), [look, healthy]), (("runs", "get", RUN), [look]), (("top", "--once"), [look, healthy])
        ):  # fmt: skip
            shown = self.shown(*words)
            for coloured in colours:
                self.assertIn(coloured, shown)
            self.assertNotIn("\x1b", self.piped(*words))
            for off in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
                self.assertNotIn("\x1b", self.shown(*words, **off))
            self.assertIn("\x1b", self.shown(*words, NO_COLOR=""), "as if it weren't set")
        down = self.terminal("top", "--once", address=f"{self.address},127.0.0.1:1")
        self.assertEqual(down.wait(), 1)
        self.assertIn("server 2  \x1b[1;31mno answer\x1b[0m: ", down.shown.decode())
        self.assertIn("What it holds is not shown.", down.shown.decode())

    def test_q_ends_top(self):
        for words in ((), (RUN,)):
            top = self.terminal("top", *words)
            top.until(lambda: top.watches() and b"sis_server" in top.shown)
            os.write(top.ours, b"xq")
            self.assertEqual(top.wait(), 0)
            self.assertEqual(top.settings(), top.before)
            self.assertNotIn(b"xq", top.shown)

    def test_q_ends_top_while_the_server_says_nothing(self):
        server = LiveServer()
        self.addCleanup(server.close)
        top = self.terminal("top", "--interval=0.1", address=server.address)
        top.until(lambda: top.watches() and b"No runs yet" in top.shown)
        server.process.send_signal(signal.SIGSTOP)
        self.addCleanup(server.process.send_signal, signal.SIGCONT)
        stopped = os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
        self.assertEqual(stopped.si_status, signal.SIGSTOP)
        # Soon there is nothing more to read: it has asked, and waits.
        shown = -1
        while shown != len(top.shown):
            shown = len(top.shown)
            time.sleep(0.5)
            top.read()
        os.write(top.ours, b"q")
        self.assertEqual(top.wait(), 0)
        self.assertEqual(top.settings(), top.before)

    def test_the_terminal_is_as_before_after_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            top = self.terminal("top")
            top.until(top.watches)
            if number == signal.SIGINT:
                os.write(top.ours, b"\x03")
            else:
                top.process.send_signal(number)
            self.assertEqual(top.wait(), -number)
            self.assertEqual(top.settings(), top.before)

    def test_the_terminal_is_as_before_while_top_is_stopped(self):
        top = self.terminal("top")
        top.until(top.watches)
        top.process.send_signal(signal.SIGTSTP)
        stopped = os.WSTOPPED | os.WNOHANG
        top.until(lambda: os.waitid(os.P_PID, top.process.pid, stopped))
        self.assertEqual(top.settings(), top.before)
        top.process.send_signal(signal.SIGCONT)
        top.until(top.watches)
        os.write(top.ours, b"q")
        self.assertEqual(top.wait(), 0)

    def test_the_terminal_is_as_before_after_a_failure(self):
        top = self.terminal("top", "nowhere")
        self.assertEqual(top.wait(), 1)
        self.assertEqual(top.settings(), top.before)


if __name__ == "__main__":
    unittest.main()
