"""The C++ client and the Python client do the same, which is what the table says."""

import itertools
import os
import re
import signal
import tempfile
import time
import unittest
from concurrent import futures

from server.testing.live_server import LiveServer
from sis.servers.placement import Placement
from tests.clients import behaviours
from tests.clients.behaviours import BEHAVIOURS, Behaviour, Differs
from tests.clients.cpp_process import CppClient
from tests.clients.python_client import PythonClient

PATIENCE = 30.0  # seconds


class CppClientTest(unittest.TestCase):
    def test_a_verb_that_lacks_its_connection_or_stream_is_answered(self):
        client = CppClient()
        self.addCleanup(client.close)
        refused = client.do("connect unix:/nowhere unix:/nowhere timeout=1")
        self.assertRegex(refused, "^INVALID_ARGUMENT .*unix:/nowhere")
        for verb in ("create_run r", "list_runs", "fetch x", "open", "block x rows=1", "flush", "release x"):
            self.assertEqual(client.do(verb), "FAILED_PRECONDITION not connected", verb)
        server = LiveServer()
        self.addCleanup(server.close)
        self.assertEqual(client.do(f"connect {server.address} timeout=20"), "ok")
        for verb in ("block x rows=1", "seal x 1", "flush", "finish"):
            self.assertEqual(client.do(verb), "FAILED_PRECONDITION no stream is open", verb)
        self.assertEqual(client.do("list_runs"), "ok")


def fits(told, expected):
    pattern = ".*".join(map(re.escape, expected.split("…")))
    return re.fullmatch(pattern, told.partition("\t")[0]) is not None


class Scene:
    """Servers, and clients of one kind, that play one behaviour."""

    def __init__(self, behaviour: Behaviour, make_client, folder):
        self._behaviour = behaviour
        self._make_client = make_client
        self._clients = {}
        # The same for each kind of client, so that the same server has the same sequence.
        self._addresses = [f"unix:{folder}/{number}" for number in range(behaviour.servers)]
        self._servers = [self._start(address) for address in self._addresses]
        self._sequences = {}

    def _start(self, listen):
        return LiveServer(*self._behaviour.flags, listen=listen, cache_bytes=16 << 20)

    def close(self):
        for server in self._servers:
            server.process.send_signal(signal.SIGCONT)
            server.kill()
        for client in self._clients.values():
            client.close()

    def play(self, line, expected):
        """What came of the line, with the names of the table."""
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
            self._clients[actor] = self._make_client()
            connected = self._clients[actor].do(
                f"connect {' '.join(self._addresses)} timeout={self._behaviour.timeout}"
            )
            assert connected == "ok", connected
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


def played(behaviour, make_client, language, folder):
    """What came of each line, which is what the table says."""
    scene = Scene(behaviour, make_client, folder)
    try:
        told = []
        for line, outcome in behaviour.lines:
            expected = getattr(outcome, language) if isinstance(outcome, Differs) else outcome
            told.append(scene.play(line, expected))
            if not fits(told[-1], expected):
                raise AssertionError(f"{language}: {line}: expected {expected!r}, got {told[-1]!r}")
        return told
    finally:
        scene.close()


def comparable(told):
    """Without the words of gRPC about a connection, which depend on when it is looked at."""
    return re.sub(r"\b(UNAVAILABLE|DEADLINE_EXCEEDED) .*?(?=; refused |$)", r"\1", told)


def both_play(behaviour):
    """For each line that they share: the line, and what came of it in C++ and in Python."""
    with tempfile.TemporaryDirectory() as folder:
        cpp = played(behaviour, CppClient, "cpp", folder)
        python = played(behaviour, PythonClient, "python", folder)
    return [
        (line, comparable(ours), comparable(theirs))
        for (line, outcome), ours, theirs in zip(behaviour.lines, cpp, python)
        if not isinstance(outcome, Differs)
    ]


class BehavioursTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        # Most of the time of most of them is waiting.
        pool = futures.ThreadPoolExecutor(6)
        cls.addClassCleanup(pool.shutdown, cancel_futures=True)
        slowest_first = sorted(BEHAVIOURS, key=lambda behaviour: "wait" not in str(behaviour.lines))
        cls.plays = {behaviour.situation: pool.submit(both_play, behaviour) for behaviour in slowest_first}

    def test_the_page_shows_the_table(self):
        self.assertEqual(behaviours.PAGE.read_text(), behaviours.page())


def _test(behaviour):
    def test(self):
        for line, cpp, python in self.plays[behaviour.situation].result():
            self.assertEqual(cpp, python, line)

    return test


for _behaviour in BEHAVIOURS:
    _name = "test_" + re.sub(r"\W+", "_", _behaviour.situation)
    setattr(BehavioursTest, _name, _test(_behaviour))


if __name__ == "__main__":
    unittest.main()
