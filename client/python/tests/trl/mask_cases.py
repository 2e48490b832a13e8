"""TRL's own mask of sequences, in the service."""

import inspect
import math
import textwrap
import types
import unittest

import numpy as np
import recorded_ratios
import torch
from server.testing.live_server import LiveServer
from trl import GRPOConfig, GRPOTrainer

import sis


def importance_of(behaviour, current, mask, cap):
    """What TRL makes of a batch's mismatch with its default mode, sequence_mask, by its own lines."""
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    begin = source.index("            if self.use_vllm and self.vllm_importance_sampling_correction:\n")
    end = source.index("            # Compute the per-token log probabilities for the reference model\n")
    self = types.SimpleNamespace(
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=GRPOConfig(use_cpu=True).vllm_importance_sampling_mode,
        vllm_importance_sampling_clip_min=None,
        vllm_importance_sampling_clip_max=cap,
    )
    names = {
        "self": self, "torch": torch, "math": math, "tool_mask": None,
        "completion_mask": torch.tensor(mask).int(), "old_per_token_logps": torch.tensor(current),
        "sampling_per_token_logps": torch.tensor(behaviour),
    }  # fmt: skip
    exec(textwrap.dedent(source[begin:end]), names)
    return names["vllm_importance_sampling_ratio"][:, 0].numpy()


class TrlMaskTest(unittest.TestCase):
    def test_sequences_are_left_out_that_trl_leaves_out(self):
        server = LiveServer()
        self.addCleanup(server.close)
        client = sis.Client(server.address)
        self.addCleanup(client.close)
        # The other way around, as only large ratios are masked.
        current, behaviour, mask = recorded_ratios.tensors(2)
        # Its sums have no limit on a token's ratio, ours has one of 20 nats.
        behaviour = np.maximum(behaviour, current - 15)
        for cap in (1.5, 3.0):
            region = sis.SequenceTrustRegion("k1", "sum", lower=-math.log(cap))
            got = recorded_ratios.evaluate(client, f"cap{cap}", behaviour, current, mask, [region])
            want = importance_of(behaviour, current, mask, cap)
            self.assertGreater(np.abs(np.log(want[want > 0]) - math.log(cap)).min(), 1e-5)
            self.assertTrue(4 < (want == 0).sum() < 32, (want == 0).sum())
            np.testing.assert_array_equal(got.outside_trust_regions, want == 0)
            np.testing.assert_allclose(np.exp(-got.divergences[want > 0, 0]), want[want > 0], rtol=1e-5)
