"""`sisctl step`: what a draw came to."""

import pathlib
import subprocess
import unittest

import numpy as np

import sis
from server.testing.live_server import LiveServer

SISCTL = pathlib.Path("client/cli/sisctl")


class StepTest(unittest.TestCase):
    def test_a_draw_of_which_all_is_missing_has_no_means(self):
        server = LiveServer(cache_bytes=16 << 20)
        self.addCleanup(server.close)
        with sis.Client(server.address) as client:
            run = client.create_run("r", seed=1, vocabulary_size=9, top_k=2)
            rows = np.full((3, 2), -1, np.float32)
            client.evaluate(
                run, [sis.Slice("never came", 0, 3)], draw=1, log_probs=rows, sampled_log_probs=rows[:, 0],
                prefix_curve=(1, 2),
            )  # fmt: skip
        command = [SISCTL, f"--server={server.address}", "step", "r", "1"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertRegex(said, r"missing +3\n")
        self.assertRegex(said, r"accept rate +-\n")
        self.assertNotIn("nan", said)


if __name__ == "__main__":
    unittest.main()
