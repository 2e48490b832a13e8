"""TRL with DeepSpeed's ZeRO-2 and ZeRO-3, two processes over gloo, beside DDP and float64: run by tools/rl-test."""

import os
import unittest

# Without asking what this machine has.
os.environ["DS_ACCELERATOR"] = "cpu"

from two_processes import OWN_SETS, TwoProcessCase


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
        """Sets of the trainer are of all of the split head."""
        kinds = {
            "": {}, "_adapters": {"adapters": True},
            "_own_sets": OWN_SETS, "_own_sets_of_adapters": {**OWN_SETS, "adapters": True},
        }  # fmt: skip
        ddp = {f"ddp{kind}": changed for kind, changed in kinds.items()}
        zero2 = {f"zero2{kind}": {**kinds[kind], **zero(2)} for kind in ("", "_own_sets")}
        zero3 = {f"zero3{kind}": {**changed, **zero(3)} for kind, changed in kinds.items()}
        seen = self.ranks(**ddp, **zero2, **zero3)
        for other in (*zero2, *zero3):
            self.check_as(seen[f"ddp{other[len('zero2'):]}"], seen[other], split=other in zero3)

if __name__ == "__main__":
    unittest.main()
