"""A server most of whose memory is in a swap file."""

import contextlib
import os
import pathlib
import subprocess
import tempfile
import threading
import unittest
import urllib.request

import numpy as np

import sis
from server.testing.live_server import LiveServer
from server.testing.process_status import process_status
from tests.integration.large_sequences import CONFIG, POSITIONS, append, name

SEQUENCES, BATCH = 200, 20
MEBIBYTE = 1 << 20
SWAP_BYTES = 256 * MEBIBYTE
# Of some 140 MiB that the server uses.
MEMORY_BYTES = 80 * MEBIBYTE


class Swap:
    """A swap file, which root may add, and a control group, whose processes can be held to fewer
    bytes of memory than they use. They begin with `prefix`. Close it when they have ended."""

    def __init__(self, folder):
        if os.geteuid() != 0:
            raise unittest.SkipTest("needs root, who may add a swap file")
        hierarchy = pathlib.Path("/sys/fs/cgroup")
        versions = ((hierarchy / "memory", "memory.limit_in_bytes"), (hierarchy, "memory.high"))
        hierarchy, limit = versions[0] if (hierarchy / "memory").is_dir() else versions[1]
        self._group = hierarchy / f"sis-swap-test-{os.getpid()}"
        self._limit = self._group / limit
        self._file = folder / "swap"
        self.prefix = ["sh", "-c", f'echo $$ >{self._group}/cgroup.procs && exec "$@"', "sh"]
        try:
            with contextlib.ExitStack() as made:
                self._group.mkdir()
                made.callback(self._group.rmdir)
                self._limit.read_text()
                with self._file.open("wb") as file:  # without holes
                    os.fchmod(file.fileno(), 0o600)
                    for _ in range(SWAP_BYTES // MEBIBYTE):
                        file.write(bytes(MEBIBYTE))
                    os.fsync(file.fileno())
                for command in ([*self.prefix, "true"], ["/sbin/mkswap", self._file], ["/sbin/swapon", self._file]):
                    subprocess.run(command, check=True, capture_output=True, text=True)
                made.callback(subprocess.run, ["/sbin/swapoff", self._file], check=True)
                self.close = made.pop_all().close
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or error
            raise unittest.SkipTest(f"the machine lets nobody swap: {why}") from error

    def hold_to(self, size):
        self._limit.write_text(str(size))


class SwapTest(unittest.TestCase):
    def setUp(self):
        # Bazel's is on a disk, where /tmp may be in memory.
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        swap = Swap(pathlib.Path(folder.name))
        self.addCleanup(swap.close)
        self.hold_to = swap.hold_to
        self.server = LiveServer(cache_bytes=192 * MEBIBYTE, prefix=swap.prefix)
        self.addCleanup(self.server.kill)
        self.client = sis.Client(self.server.address, timeout=60)
        self.addCleanup(self.client.close)
        self.run_ = self.client.create_run("run", **CONFIG)

    def evaluated(self, numbers):
        """Of a policy a little off: what was fetched, and the decisions on it, as bytes."""
        answers = []
        for first in range(0, len(numbers), BATCH):
            slices = [sis.Slice(name(number), 0, POSITIONS) for number in numbers[first : first + BATCH]]
            records = self.client.fetch_top_k(self.run_, slices)
            current = {
                "log_probs": records.log_probs - np.float32(0.25),
                "sampled_log_probs": records.sampled_log_probs - np.float32(0.25),
            }
            evaluation = self.client.evaluate(
                self.run_, records, draw=1, outputs=("ratios", "decisions"), **current
            )
            self.assertEqual((evaluation.totals.scored, evaluation.missing), (POSITIONS * len(slices), ()))
            answers += [records.log_probs.tobytes(), evaluation.ratios.tobytes(), evaluation.decisions.tobytes()]
        return answers

    def swapped_bytes(self):
        return 1024 * process_status(self.server.process, "VmSwap")

    def major_faults(self):
        fields = pathlib.Path(f"/proc/{self.server.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[9])

    def test_it_is_slower_and_no_more(self):
        before = range(SEQUENCES)
        append(self.client, self.run_, before)
        answers = self.evaluated(before)

        self.hold_to(MEMORY_BYTES)
        faults = self.major_faults()
        appended = range(SEQUENCES, SEQUENCES + BATCH)
        worker = threading.Thread(target=append, args=[self.client, self.run_, appended])
        worker.start()
        self.assertTrue(self.evaluated(before) == answers)
        worker.join()
        # 60 MiB are too many, but up to 40 of them are of files, which need no swap.
        self.assertGreater(self.swapped_bytes(), MEMORY_BYTES // 4)
        self.assertGreater(self.major_faults() - faults, 1000)
        # What was acked meanwhile is there.
        self.evaluated(appended)
        with urllib.request.urlopen(f"http://{self.server.admin_address}/readyz", timeout=60) as page:
            self.assertEqual(page.status, 200)
        self.server.process.terminate()
        self.assertEqual(self.server.process.wait(timeout=30), 0)


if __name__ == "__main__":
    unittest.main()
