"""TRL's trainer with the layers of Liger: run by tools/rl-test where liger-kernel is installed, 0.8.5 for example.
Without a GPU Triton's interpreter runs its kernels."""

import importlib.util
import os
import unittest
import unittest.mock

import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    # Before anything imports Triton.
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import trainer_case
from trainer_case import InFloat64, TrainerCase, in_float64
from transformers.models.qwen3 import modeling_qwen3

# Classes and functions that Liger replaces for all models from then on.
STOCK = {name: getattr(modeling_qwen3, name) for name in ("apply_rotary_pos_emb", "Qwen3MLP", "Qwen3RMSNorm")}


def without_liger():
    return unittest.mock.patch.multiple(modeling_qwen3, **STOCK)


class BesideStock(InFloat64):
    def logits(self, model, inputs):
        with without_liger():
            return super().logits(model, inputs)


def stock_in_float64(model):
    with without_liger():
        return in_float64(model)


def fill_gaps_of_the_interpreter():
    """It hands kernels floats as they are, not as scalars, and has no functions of libdevice."""
    import triton.language as tl
    from liger_kernel.ops import rms_norm
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt

    def with_floats(value):
        if not isinstance(value, float):
            return convert(value)
        return tl.tensor(interpreter.TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)

    interpreter._implicit_cvt = with_floats
    rms_norm.rsqrt = lambda value: tl.math.rsqrt(value)  # as it is while the interpreter runs


@unittest.skipUnless(importlib.util.find_spec("liger_kernel"), "liger-kernel is not installed")
class LigerTest(TrainerCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not ON_GPU:
            fill_gaps_of_the_interpreter()

    def test_beside_the_stock_layers_in_float64(self):
        for top_p in (1.0, 0.8):
            with (
                self.subTest(top_p=top_p), without_liger(),
                unittest.mock.patch.object(trainer_case, "in_float64", stock_in_float64),
            ):  # fmt: skip
                trainer = self.of_a_hundred_words(
                    BesideStock, max_completion_length=6, use_cpu=not ON_GPU, use_liger_kernel=True, top_p=top_p
                )
                self.check_in_float64(trainer)
                layer = trainer.model.model.layers[0]
                for module in (trainer.model.model.norm, layer.mlp, layer.self_attn.q_norm):
                    self.assertRegex(module.forward.__func__.__module__, "^liger_kernel")
                self.assertRegex(modeling_qwen3.apply_rotary_pos_emb.__module__, "^liger_kernel")


if __name__ == "__main__":
    unittest.main()
