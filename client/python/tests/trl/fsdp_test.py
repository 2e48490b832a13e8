"""TRL with FSDP2, two processes over gloo, beside DDP and float64: run by tools/rl-test."""

import os
import unittest
import unittest.mock

import torch
from trainer_case import settings
from two_processes import OWN_SETS, TwoProcessCase

from sis.integrations.trl import _decisions, _refusals

SHARDED = {"fsdp": True, "fsdp_config": {"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]}}


class FsdpTest(TwoProcessCase):
    def test_as_ddp_and_float64(self):
        # Sharding changes a process's environment, so it is tested last.
        ddp = {"ddp": {}, "ddp_own_sets": OWN_SETS}
        seen = self.ranks(**ddp, fsdp=SHARDED, fsdp_own_sets={**SHARDED, **OWN_SETS})
        for kind in ("", "_own_sets"):
            self.check_as(seen[f"ddp{kind}"], seen[f"ddp{kind}"], split=False)
            self.check_as(seen[f"ddp{kind}"], seen[f"fsdp{kind}"], split=True)

    def test_adapters(self):
        """The head stays split while losses are computed."""
        adapters = {**SHARDED, "adapters": True}
        for ranks in self.ranks(adapters=adapters, own_sets_of_adapters={**adapters, **OWN_SETS}).values():
            for rows, weights, split, most in ranks:
                self.assertEqual(split, len(weights))
                self.assertEqual([row["sis/missing"] + row["sis/envelope_violations"] for row in rows], [0] * 4)
                self.assertGreater(rows[1]["sis/d"], 1e-3)
                self.assertLess(most, 1e-5)

    def test_refused(self):
        _refusals.check_sharding(settings(self.folder))
        _refusals.check_sharding(settings(self.folder, fsdp=True, fsdp_config={"fsdp_version": 2}))
        # Before a model is loaded, or an engine started.
        first = "FSDP1.*set fsdp_version to 2"
        with self.assertRaisesRegex(ValueError, first):
            self.trainer(model="none", fsdp=True, fsdp_config={"fsdp_version": 1})
        launched = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}
        with unittest.mock.patch.dict(os.environ, launched), self.assertRaisesRegex(ValueError, first):
            self.trainer(model="none")

    def test_a_head_that_stays_split(self):
        """As of a model with adapters, or whose final norm Accelerate does not find."""
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        head = torch.nn.Linear(8, 16, bias=False)
        weight = head.weight.detach().clone()
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        split = torch.distributed.tensor.distribute_tensor(weight, mesh, [torch.distributed.tensor.Shard(0)])
        for frozen, learns in ((True, False), (True, True), (False, False)):
            head.weight = torch.nn.Parameter(split, requires_grad=not frozen)
            self.assertTrue(torch.equal(_decisions.whole_head(head, learns).weight, weight))
        with self.assertRaisesRegex(ValueError, "the head learns, and is split.*use DDP, or adapters"):
            _decisions.whole_head(head, learns=True)


if __name__ == "__main__":
    unittest.main()
