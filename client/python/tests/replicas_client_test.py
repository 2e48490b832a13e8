"""A client of several services in this process: what it asks of whom."""

import unittest

import numpy as np

import fake_service
import sis
from sis.placement import Placement

SAMPLING = sis.Sampling("raw")
TOP_K, VOCABULARY = 3, 16


class ReplicasClientTest(unittest.TestCase):
    def setUp(self):
        self.services, self.names = [], []
        for _ in range(2):
            self.services.append(fake_service.FakeService())
            server, address = fake_service.start(self.services[-1])
            self.addCleanup(lambda server=server: server.stop(None).wait())
            self.names.append(address)
        self.client = sis.Client(self.names, timeout=20)
        self.addCleanup(self.client.close)
        self.run_ = self.client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)

    def sequence_of(self, replica):
        """The id of a sequence that this replica has."""
        placement = Placement(self.names)
        return next(f"s{i}" for i in range(1000) if placement.replica("run", f"s{i}") == replica)

    def evaluate(self, slices, **options):
        positions = sum(part.length for part in slices)
        return self.client.evaluate(
            self.run_,
            slices,
            draw=1,
            log_probs=np.full((positions, TOP_K), -2.0),
            sampled_log_probs=np.full(positions, -2.0),
            **options,
        )

    def test_clip_cov_needs_the_whole_batch(self):
        slices = [sis.Slice(self.sequence_of(replica), length=2) for replica in range(2)]
        clip_cov = sis.EvaluateOptions(algorithm=sis.ClipCov(), advantages=np.ones(4))
        message = "clip_cov: it chooses among all positions .* there are 2, must be one"
        with self.assertRaisesRegex(sis.InvalidArgument, message):
            self.evaluate(slices, outputs=["coefficients"], options=clip_cov)
        self.assertEqual([service.evaluations for service in self.services], [[], []])


if __name__ == "__main__":
    unittest.main()
