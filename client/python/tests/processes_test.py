"""A client in processes that fork, spawn others, or are interrupted: the rows of docs/faults.md. Each case is a program of
its own with a time limit, so that one that hangs is reported at once, with its stacks."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

from in_a_fork import skip_unless_grpc_lets_fork
from server.testing import live_server

SECONDS = 60
BEGIN = f"""
import faulthandler, sys
import sis
faulthandler.dump_traceback_later({SECONDS - 10}, exit=True)
address = sys.argv[1]
sampling = sis.Sampling("raw")
seal = [sis.Seal("sequence", 0)]

def ask():
    with sis.Client(address, timeout=20) as new:
        return [status.run.id for status in new.list_runs()]
"""

FORK = """
from in_a_fork import in_a_fork

with sis.Client(address, timeout=20) as client:
    run = client.create_run("fork", seed=1, vocabulary_size=8, top_k=2)
    runs = ask()
    for _ in range(3):
        sis.append_many(client, run, seal, sampling=sampling)
        assert in_a_fork(ask) == runs
        assert len(client.list_runs()) == len(runs)
    stream = client.append(run, sampling=sampling)
    stream.flush()
    for inherited in (
        client.list_runs,
        lambda: client.append(run, sampling=sampling),
        lambda: sis.append_many(client, run, seal, sampling=sampling),
        lambda: stream.seal("sequence", length=1),
        stream.flush,
        stream.close,
    ):
        error = in_a_fork(inherited)
        assert isinstance(error, RuntimeError) and "Make a sis.Client here, after the fork" in str(error), error
    stream.close()
"""

SPAWN = """
import multiprocessing

def append(run):
    with sis.Client(address, timeout=20) as client:
        return sis.append_many(client, run, seal, sampling=sampling)

if __name__ == "__main__":
    with sis.Client(address, timeout=20) as client:
        run = client.create_run("spawn", seed=1, vocabulary_size=8, top_k=2)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(append, [run]) == {("sequence", 0): 0}
            try:
                pool.apply(append, [client])
            except TypeError as error:
                assert "make one there" in str(error), error
            else:
                raise AssertionError("a client was sent")
        assert client.get_run("spawn").sealed_sequences == 1
"""

# Ctrl-C comes while the server is stopped, so that each call waits.
INTERRUPT = """
import os, signal, threading

server = int(sys.argv[2])
client = sis.Client(address, timeout=1000)
run = client.create_run("interrupt", seed=1, vocabulary_size=8, top_k=2)
stream = client.append(run, sampling=sampling)
stream.flush()
os.kill(server, signal.SIGSTOP)
stream.seal("unflushed", length=0)
for wait in (client.list_runs, lambda: sis.append_many(client, run, seal, sampling=sampling), stream.flush):
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        wait()
    except KeyboardInterrupt:
        continue
    raise AssertionError("not interrupted")
client.close()
os.kill(server, signal.SIGCONT)
assert ask() == ["interrupt"]
"""


class ProcessesTest(unittest.TestCase):
    def setUp(self):
        self.script = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "script.py"
        self.server = self.enterContext(live_server.LiveServer())
        # Before: a stopped server never ends.
        self.addCleanup(self.server.process.send_signal, signal.SIGCONT)

    def play(self, program):
        self.script.write_text(BEGIN + program)
        done = subprocess.run(
            [sys.executable, self.script, self.server.address, str(self.server.process.pid)],
            capture_output=True, text=True, timeout=SECONDS, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_fork(self):
        skip_unless_grpc_lets_fork()
        self.play(FORK)

    def test_spawn(self):
        self.play(SPAWN)

    def test_interrupt(self):
        self.play(INTERRUPT)


if __name__ == "__main__":
    unittest.main()
