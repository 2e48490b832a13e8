"""Records what transformers' generate returns for transformers_test: record_transformers.py MODEL
FILE.

The environment is that of tools/rl-test.
"""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

PROMPTS = [[270, 443, 285, 264], [78, 70, 264, 282]]


def main(path, file):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    torch.manual_seed(5)
    config = GenerationConfig(
        do_sample=True, temperature=0.9, top_k=0, top_p=0.9, max_new_tokens=24, eos_token_id=[2, 129], pad_token_id=0,
        output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    ids = torch.tensor(PROMPTS * 3)
    output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    scores = torch.stack(output.scores, dim=1).numpy()
    np.savez_compressed(file, sequences=output.sequences.numpy().astype(np.int32), scores=scores)


if __name__ == "__main__":
    main(*sys.argv[1:])
