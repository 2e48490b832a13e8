"""verl's own masks of sequences, in the service."""

import unittest

import numpy as np
import recorded_ratios
import torch
from server.testing.live_server import LiveServer

import sis


class VerlCorrectionTest(unittest.TestCase):
    def test_sequences_are_left_out_that_verl_leaves_out(self):
        from verl.trainer.ppo.rollout_corr_helper import (
            SUPPORTED_ROLLOUT_RS_OPTIONS,
            compute_rollout_rejection_mask,
        )

        server = LiveServer()
        self.addCleanup(server.close)
        client = sis.Client(server.address)
        self.addCleanup(client.close)
        modes = sorted(mode for mode in SUPPORTED_ROLLOUT_RS_OPTIONS if mode.startswith("seq_"))
        self.assertEqual(len(modes), 8)
        behaviour, current, mask = recorded_ratios.tensors(1)
        self.assertTrue((current - behaviour < -20)[mask].any(), "none is beyond verl's limit")
        for mode in modes:
            with self.subTest(mode):
                _, aggregate, divergence = mode.split("_")
                wide = sis.SequenceTrustRegion(divergence, aggregate, upper=1e9)
                of = recorded_ratios.evaluate(client, f"{mode}-all", behaviour, current, mask, [wide])
                # Half of them lie outside, none of them near a bound, where rounding would tell.
                values = np.sort(np.abs(of.divergences[:, 0]))
                gaps = np.diff(values[24:40])
                bound = float(values[24:40][gaps.argmax()] + gaps.max() / 2)
                spec = f"{np.exp(-bound)!s}_{np.exp(bound)!s}" if divergence == "k1" else str(bound)
                region = sis.SequenceTrustRegion(
                    divergence, aggregate, -bound if divergence == "k1" else None, bound
                )
                got = recorded_ratios.evaluate(client, mode, behaviour, current, mask, [region])
                want, _ = compute_rollout_rejection_mask(
                    torch.tensor(current - behaviour), torch.tensor(mask, dtype=torch.float32), mode, spec
                )
                kept = want.numpy().any(axis=1)
                self.assertTrue(20 < kept.sum() < 44, kept.sum())
                np.testing.assert_array_equal(~got.outside_trust_regions, kept)
                np.testing.assert_array_equal(got.coefficients != 0, want.numpy()[mask] != 0)
