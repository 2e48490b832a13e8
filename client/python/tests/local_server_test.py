"""A server of this process, by the binary that Bazel built."""

import os
import pathlib
import signal
import subprocess
import sys
import unittest
import unittest.mock

from in_a_fork import skip_unless_grpc_lets_fork
from server.testing import live_server
from server.testing.until import until

import sis

PATH = str(live_server.BINARY.parent)
LEFT_OPEN = """
import sis
server = sis.local_server(cache_bytes=64 << 20)
print(server.address, server._process.pid)
"""
# Waits to be killed, with a child that outlives it.
KILLED = """
import os, signal, threading
import sis
started = []
thread = threading.Thread(target=lambda: started.append(sis.local_server(cache_bytes=64 << 20)))
thread.start()
thread.join()
child = os.fork()
if child:
    print(started[0].address, started[0]._process.pid, child, flush=True)
else:
    # Then nobody reads what the server says.
    os.close(started[0]._process.stdout.fileno())
signal.pause()
"""

# As Ctrl-C in a terminal and "interrupt" in a notebook, which signal all processes of a group.
INTERRUPTED = """
import os, signal, time
import sis
server = sis.local_server(cache_bytes=64 << 20)
try:
    os.killpg(0, signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
with sis.Client(server.address, timeout=20) as client:
    client.list_runs()
"""

# Ends as programs do, with all that they have registered, while it is in the blocks of its parent.
LEFT_BY_A_CHILD = """
import os, sys
import sis
with sis.local_server(cache_bytes=64 << 20) as server:
    with sis.Client(server.address, timeout=20) as client:
        run = client.create_run("run", seed=1, vocabulary_size=8, top_k=2)
        with client.append(run, sampling=sis.Sampling("raw")) as stream:
            stream.seal("sequence", length=1)
            child = os.fork()
            if child == 0:
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            stream.seal("another", length=1)
            stream.flush()
        assert [status.run.id for status in client.list_runs()] == ["run"]
"""


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def running(process):
    """Also who ended has a folder, until somebody asks how."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill(process):
    if running(process):
        os.kill(process, signal.SIGKILL)


@unittest.mock.patch.dict(os.environ, {"PATH": PATH})
class LocalServerTest(unittest.TestCase):
    def test_it_serves_until_it_is_closed(self):
        with sis.local_server(cache_bytes=64 << 20) as server, sis.Client(server.address, timeout=5) as client:
            self.assertEqual(client.list_runs(), [])
            process = server._process
        self.assertEqual(process.returncode, 0)
        server.close()

    def test_it_ends_with_its_process(self):
        done = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, env=environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(pathlib.Path(f"/proc/{done.stdout.split()[-1]}").exists())

    def test_it_ends_with_a_process_that_is_killed(self):
        for killed_by in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(killed_by=killed_by.name), subprocess.Popen(
                [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, env=environment()
            ) as parent:
                address, server, child = parent.stdout.readline().split()
                self.addCleanup(kill, int(child))
                self.addCleanup(kill, int(server))
                # The thread that started it has ended; the process has not.
                with sis.Client(address, timeout=20) as client:
                    self.assertEqual(client.list_runs(), [])
                parent.send_signal(killed_by)
                until(lambda: running(server), lambda runs: not runs, seconds=20)
                self.assertTrue(running(child))

    def test_a_child_leaves_what_its_parent_has(self):
        skip_unless_grpc_lets_fork()
        done = subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", "-c", LEFT_BY_A_CHILD],
            capture_output=True, text=True, env=environment(), timeout=60,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("Warning", done.stderr)

    def test_an_interrupted_program_keeps_it(self):
        done = subprocess.run(
            [sys.executable, "-c", INTERRUPTED],
            capture_output=True, text=True, env=environment(), start_new_session=True, timeout=60,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_failures_are_reported(self):
        with self.assertRaisesRegex(RuntimeError, "ended with status 1 before it was ready"):
            sis.local_server("--no_such_flag=1")
        with unittest.mock.patch.dict(os.environ, {"PATH": "/nowhere"}):
            with self.assertRaisesRegex(FileNotFoundError, "wheel sis-ratio-server, which tools/wheels"):
                sis.local_server()


if __name__ == "__main__":
    unittest.main()
