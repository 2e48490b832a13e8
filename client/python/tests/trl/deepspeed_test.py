"""TRL with DeepSpeed's ZeRO-2 and ZeRO-3, two processes over gloo, beside DDP and float64: run by tools/rl-test."""

import os
import types
import unittest

# Without asking what this machine has.
os.environ["DS_ACCELERATOR"] = "cpu"

from two_processes import TwoProcessCase

from sis.trl import refusals


def zero(stage):
    """Which splits the smallest parameters too."""
    return {
        "deepspeed": {
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "zero_allow_untested_optimizer": True,
            **dict.fromkeys(
                ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto"
            ),
        }
    }


class DeepspeedTest(TwoProcessCase):
    def test_as_ddp_and_float64(self):
        """With score centering gradients go through the rows of the split head."""
        kinds = {"": {}, "_centered": {"score_centering": True}, "_adapters": {"adapters": True}}
        ddp = {f"ddp{kind}": changed for kind, changed in kinds.items()}
        zero3 = {f"zero3{kind}": {**changed, **zero(3)} for kind, changed in kinds.items()}
        seen = self.ranks(**ddp, zero2=zero(2), **zero3)
        self.check_as(seen["ddp"], seen["zero2"], split=False)
        for one, other in zip(ddp, zero3):
            self.check_as(seen[one], seen[other], split=True)

    def test_refused(self):
        arguments = types.SimpleNamespace(deepspeed_plugin=object())
        with self.assertRaisesRegex(ValueError, "DeepSpeed.*use FSDP2"):
            refusals.check_deepspeed(arguments)
        refusals.check_deepspeed(types.SimpleNamespace(deepspeed_plugin=None))


if __name__ == "__main__":
    unittest.main()
