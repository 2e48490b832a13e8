"""Records outputs of SGLang for sglang_test: record_sglang.py MODEL FILE.

Records the same requests with log-probs as lists, flat and in base64, streamed, and before
temperature; also an aborted request. Then records the log-probs of transformers for the same tokens, in
float32 with the same weights. SGLang draws with seeds of requests only on GPUs, so the tokens differ.

SGLang goes with no other engine's packages. Without a GPU it needs a libcuda.so.1 to be linked
with, CUDA's stub:

    python3 -m venv sglang && sglang/bin/pip install uv && sglang/bin/uv pip install sglang==0.5.23
    ln -s /usr/local/cuda/lib64/stubs/libcuda.so libcuda.so.1
    LD_LIBRARY_PATH=$PWD sglang/bin/python record_sglang.py MODEL testdata/sglang.json
"""

import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", SGLANG_USE_CPU_ENGINE="1")

PROMPTS = [[270, 443, 285, 264], [78, 70, 264]]
TOKENS = 12
LISTED = 8
REQUESTS = {
    "plain": {"temperature": 1.0},
    "warm": {"temperature": 0.7},
    "penalty": {"temperature": 1.0, "frequency_penalty": 0.5},
    # A token that is never drawn.
    "bias": {"temperature": 1.0, "logit_bias": {"264": -1e9}},
}
FORMS = {
    "list": {},
    "flat": {"return_flat_raw_output_top_logprobs": True},
    "base64": {"return_flat_raw_output_top_logprobs": True, "return_flat_raw_top_logprobs_b64": True},
}
# Fields of meta_info to keep.
KEPT = ("finish_reason", "prompt_tokens", "output_token_logprobs", "output_top_logprobs")


def kept(answer):
    """A copy: the lists of what is streamed go on growing."""
    meta = answer["meta_info"]
    names = [name for name in meta if name in KEPT or name.startswith("output_top_logprobs_")]
    return json.loads(json.dumps({"output_ids": answer["output_ids"], "meta_info": {name: meta[name] for name in names}}))


def request(prompt, params, **changed):
    return dict(
        input_ids=prompt, sampling_params={"max_new_tokens": TOKENS, "ignore_eos": True, **params},
        return_logprob=True, top_logprobs_num=LISTED, **changed,
    )  # fmt: skip


def ask(engine, index, params, **changed):
    """As /generate does; Engine.generate has no words for the flat forms."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    asked = request(PROMPTS[index], params, **changed)
    return engine.tokenizer_manager.generate_request(GenerateReqInput(**asked), None)


async def answers(engine, params, **changed):
    """One of each prompt."""
    return [
        kept([answer async for answer in ask(engine, index, params, **changed)][-1]) for index in range(len(PROMPTS))
    ]


async def record(engine):
    recorded = {
        form: {name: await answers(engine, params, **fields) for name, params in REQUESTS.items()}
        for form, fields in FORMS.items()
    }
    recorded["stream"] = [kept(answer) async for answer in ask(engine, 0, REQUESTS["plain"], stream=True)]
    recorded["aborted"] = []
    async for answer in ask(engine, 0, {**REQUESTS["plain"], "max_new_tokens": 100}, stream=True, rid="aborted"):
        recorded["aborted"].append(kept(answer))
        if len(recorded["aborted"]) == 3:
            engine.tokenizer_manager.abort_request("aborted")
    return recorded


def trainer(path, answers, temperature):
    """Returns for each answer the log-probs of its tokens, the log-probs of the same tokens one position
    earlier, and the most probable tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    found = []
    for prompt, answer in zip(PROMPTS, answers):
        tokens = torch.tensor(answer["output_ids"])
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer["output_ids"]])).logits[0]
        log_probs = (logits / temperature).log_softmax(-1)
        here, before = (log_probs[first : first + len(tokens)] for first in (len(prompt) - 1, len(prompt) - 2))
        top = here.topk(LISTED)
        found.append({
            "sampled": here.gather(1, tokens[:, None])[:, 0].tolist(),
            "sampled_one_before": before.gather(1, tokens[:, None])[:, 0].tolist(),
            "top_ids": top.indices.tolist(),
            "top_log_probs": top.values.tolist(),
        })  # fmt: skip
    return found


def main(model, file):
    import sglang

    def engine():
        return sglang.Engine(
            model_path=model, device="cpu", attention_backend="torch_native", sampling_backend="pytorch", dtype="float32",
            disable_overlap_schedule=True, disable_cuda_graph=True, mem_fraction_static=0.3, max_total_tokens=4096,
            grammar_backend="none", log_level="error", disable_radix_cache=True, random_seed=1,
        )  # fmt: skip

    made = engine()
    recorded = made.loop.run_until_complete(record(made))
    made.shutdown()
    os.environ["SGLANG_RETURN_ORIGINAL_LOGPROB"] = "1"
    made = engine()
    recorded["original"] = made.loop.run_until_complete(answers(made, REQUESTS["warm"]))
    made.shutdown()
    recorded["trainer"] = {
        form: {name: trainer(model, recorded[form][name], REQUESTS[name]["temperature"]) for name in ("plain", "warm")}
        for form in FORMS
    }
    recorded["trainer"]["original"] = trainer(model, recorded["original"], 1.0)
    with open(file, "w") as out:
        json.dump(recorded, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
