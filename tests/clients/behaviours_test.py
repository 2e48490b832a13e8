"""The client does what behaviours.txt says when something is lost, late or wrong.

A behaviour begins with "## ", its situation and, if docs/faults.md lists it, ": " and its outcome in words. Then come its
settings, name=value, and lines to run in order, each with its outcome after " -> ", in which "…" matches anything.

Client `a` runs a line, or the client whose name it begins with ("b: get_run run"); each client connects before its first
line. The test runs lines in {}: {kill 0} ends server 0 as kill -9 does, {restart 0} starts it at the same address with
nothing in memory, {stop 0} and {continue 0} are signals, {wait 0.3} waits in seconds. A line that begins with "until" is
repeated until the outcome matches. With several servers, server 0 has the sequence "x0", server 1 has "x1".
"""

import itertools
import os
import pathlib
import re
import signal
import tempfile
import time
import unittest
from concurrent import futures

from server.testing.live_server import LiveServer
from sis._servers.placement import Placement
from tests.clients.python_client import PythonClient

PAGE = pathlib.Path("docs/faults.md")
PATIENCE = 30.0  # seconds
# The source tree, to which Bazel links: the client's tests would be a second package "tests" here.
ROOT = pathlib.Path(os.path.realpath(__file__)).parents[2]


class Behaviour:
    def __init__(self, text):
        title, *lines = text.splitlines()
        self.situation, _, self.outcome = title.partition(": ")
        settings = [line.partition("=") for line in lines if re.match(r"(servers|timeout|flag)=", line)]
        self.settings = {name: value for name, _, value in settings}
        self.servers = int(self.settings.get("servers", 1))
        # Each with its outcome.
        self.lines = [line.partition(" -> ")[::2] for line in lines[len(settings) :] if line]


# Tests of the rows of the page's table, by the event: situations of behaviours.txt, and methods in files.
TABLE = {
    "a server restarts": ["the server is killed and comes back empty"],
    "a replica is down": [
        "one of several servers without a shared store is killed",
        "one of several servers comes back empty",
    ],
    "a deadline passes": ["the server does not answer"],
    "a server is full": ["a block is larger than the run's quota"],
    "a process forks": ["client/python/tests/processes_test.py: test_fork"],
    "Ctrl-C": ["client/python/tests/processes_test.py: test_interrupt"],
    "`spawn`, an actor of Ray": [
        "client/python/tests/processes_test.py: test_spawn",
        "client/python/tests/verl/ray_cases.py: test_an_actor_makes_its_own_client",
    ],
}


BEHAVIOURS = list(map(Behaviour, pathlib.Path("tests/clients/behaviours.txt").read_text().split("\n## ")[1:]))


def fits(told, expected):
    pattern = ".*".join(map(re.escape, expected.split("…")))
    return re.fullmatch(pattern, told) is not None


class Scene:
    """Servers, and clients, that play one behaviour."""

    def __init__(self, behaviour, folder):
        self._behaviour = behaviour
        self._clients = {}
        self._addresses = [f"unix:{folder}/{number}" for number in range(behaviour.servers)]
        self._servers = [self._start(address) for address in self._addresses]
        self._sequences = {}

    def _start(self, listen):
        flags = [self._behaviour.settings["flag"]] if "flag" in self._behaviour.settings else []
        return LiveServer(*flags, listen=listen, cache_bytes=16 << 20)

    def close(self):
        for server in self._servers:
            server.process.send_signal(signal.SIGCONT)
            server.kill()
        for client in self._clients.values():
            client.close()

    def play(self, line, expected):
        """Plays the line. Returns its result, with the names of the table."""
        if line.startswith("{"):
            self._interfere(*line.strip("{}").split())
            return ""
        until = line.startswith("until ")
        actor, _, command = line.removeprefix("until ").rpartition(": ")
        end = time.monotonic() + PATIENCE
        while True:
            told = self._do(actor or "a", command)
            if not until or fits(told, expected) or time.monotonic() > end:
                return told
            time.sleep(0.05)

    def _do(self, actor, command):
        if actor not in self._clients:
            self._clients[actor] = PythonClient()
            timeout = self._behaviour.settings.get("timeout", 20)
            self._clients[actor].connect(self._addresses, float(timeout))
        named = command
        if self._behaviour.servers > 1:
            named = re.sub(r"\b([a-z]+)([0-9])\b(?!=)", lambda name: self._named(name[0], int(name[2])), command)
        told = self._clients[actor].do(named)
        for name, sequence in self._sequences.items():
            told = told.replace(sequence, name)
        for number, address in enumerate(self._addresses):
            told = told.replace(address, f"SERVER{number}")
        return told

    def _named(self, name, replica):
        """A sequence that the replica has."""
        if name not in self._sequences:
            placement = Placement(self._addresses)
            candidates = (f"{name}-{i}-of-the-test" for i in itertools.count())
            self._sequences[name] = next(s for s in candidates if placement.replica("run", s) == replica)
        return self._sequences[name]

    def _interfere(self, how, argument):
        if how == "wait":
            time.sleep(float(argument))
            return
        number = int(argument)
        if how == "kill":
            self._servers[number].kill()
        elif how == "restart":
            self._servers[number] = self._start(self._addresses[number])
        else:
            signals = {"stop": signal.SIGSTOP, "continue": signal.SIGCONT}
            process = self._servers[number].process
            process.send_signal(signals[how])
            if how == "stop":
                os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # until then it may answer


def play(behaviour):
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(behaviour, folder)
        try:
            for line, expected in behaviour.lines:
                told = scene.play(line, expected)
                if not fits(told, expected):
                    raise AssertionError(f"{line}: expected {expected!r}, got {told!r}")
        finally:
            scene.close()


class BehavioursTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Most of the time of most of them is waiting.
        pool = futures.ThreadPoolExecutor(6)
        cls.addClassCleanup(pool.shutdown, cancel_futures=True)
        slowest_first = sorted(BEHAVIOURS, key=lambda behaviour: "wait" not in str(behaviour.lines))
        cls.plays = {behaviour.situation: pool.submit(play, behaviour) for behaviour in slowest_first}

    def test_the_page_shows_the_table(self):
        listed = [f"- {each.situation}: {each.outcome}" for each in BEHAVIOURS if each.outcome]
        self.assertEqual([line for line in PAGE.read_text().splitlines() if line.startswith("- ")], listed)

    def test_each_row_of_the_table_has_tests(self):
        events = re.findall(r"^\| (?!event)([^|]+) \|", PAGE.read_text(), re.M)
        self.assertEqual(events, list(TABLE))
        for name in itertools.chain(*TABLE.values()):
            file, _, method = name.partition(": ")
            if method:
                self.assertIn(f"def {method}(self)", (ROOT / file).read_text())
            else:
                self.assertIn(name, self.plays)


def _test(behaviour):
    def test(self):
        self.plays[behaviour.situation].result()

    return test


for _behaviour in BEHAVIOURS:
    _name = "test_" + re.sub(r"\W+", "_", _behaviour.situation)
    setattr(BehavioursTest, _name, _test(_behaviour))


if __name__ == "__main__":
    unittest.main()
