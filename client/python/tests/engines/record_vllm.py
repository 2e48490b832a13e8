"""Records outputs of vLLM for vllm_test: record_vllm.py MODEL FILE.

The same requests, with seeds, as FlatLogprobs, as dictionaries, as the deltas of AsyncLLM, and as
the JSON of the OpenAI server and of its /inference/v1/generate. The environment is that of tools/rl-test.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

os.environ.update(HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind")

PROMPTS = [[270, 443, 285, 264], [78, 70, 264]]
TOKENS = 12
LISTED = 8
ENGINE = dict(
    dtype="float32", enforce_eager=True, max_model_len=128, max_logprobs=64, logprobs_mode="processed_logprobs",
    max_num_seqs=8, disable_log_stats=True,
)  # fmt: skip
# Requests by name: top_p leaves some positions with fewer tokens than are asked for.
REQUESTS = {"plain": {"temperature": 1.0}, "top_p": {"temperature": 0.7, "top_p": 0.3}}


def logprobs_fields(logprobs):
    if hasattr(logprobs, "start_indices"):
        names = ("start_indices", "end_indices", "token_ids", "logprobs")
        return {name: list(getattr(logprobs, name)) for name in names}
    return [[[token, entry.logprob, entry.rank] for token, entry in position.items()] for position in logprobs]


def completion_fields(completion):
    return {
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "logprobs": logprobs_fields(completion.logprobs),
    }


def without(value, *names):
    """JSON without these fields, on whatever level."""
    if isinstance(value, list):
        return [without(element, *names) for element in value]
    if not isinstance(value, dict):
        return value
    return {name: without(field, *names) for name, field in value.items() if name not in names}


def openai(model):
    """The choices that the OpenAI server answers: completions of the same requests, and chats and
    generations that ask for fewer and for more log-probs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = "--dtype=float32 --enforce-eager --max-model-len=128 --max-logprobs=64 --max-num-seqs=8".split()
    flags += ["--logprobs-mode=processed_logprobs", f"--port={port}", "--host=127.0.0.1", f"--model={model}"]
    flags.append("--enable-scale-out")
    server = subprocess.Popen([sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags])

    def post(path, body):
        address = f"http://127.0.0.1:{port}/{path}"
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(address, json.dumps({"model": model, **body}).encode(), headers)
        choice = json.loads(urllib.request.urlopen(asked).read())["choices"][0]
        return without(choice, "bytes", "message", "rank", "text", "text_offset", "prompt_token_ids")

    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
                break
            except OSError:
                time.sleep(1)
        recorded = {"completions": {}, "chat": {}, "generate": {}}
        ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
        always = {**ids, "ignore_eos": True, "max_tokens": TOKENS}
        for name, request in REQUESTS.items():
            recorded["completions"][name] = [
                post("v1/completions", {**always, **request, "prompt": prompt, "logprobs": LISTED, "seed": index})
                for index, prompt in enumerate(PROMPTS)
            ]
            chat = {**always, **request, "messages": [{"role": "user", "content": "what"}], "logprobs": True, "seed": 1}
            recorded["chat"][name] = [post("v1/chat/completions", {**chat, "top_logprobs": count}) for count in (6, 16)]
            for count in (6, 16):
                params = {**request, "ignore_eos": True, "max_tokens": TOKENS, "seed": 1, "logprobs": count}
                asked = {"token_ids": PROMPTS[0], "sampling_params": params}
                recorded["generate"].setdefault(name, []).append(post("inference/v1/generate", asked))
        return recorded
    finally:
        server.terminate()
        server.wait()


async def deltas(model):
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **ENGINE))
    recorded = {}
    for name, request in REQUESTS.items():
        recorded[name] = []
        for index, prompt in enumerate(PROMPTS):
            params = SamplingParams(
                max_tokens=TOKENS, logprobs=LISTED, seed=index, flat_logprobs=True, ignore_eos=True,
                output_kind=RequestOutputKind.DELTA, **request,
            )  # fmt: skip
            parts = []
            async for output in engine.generate({"prompt_token_ids": prompt}, params, request_id=f"{name}-{index}"):
                parts.append(completion_fields(output.outputs[0]))
            recorded[name].append(parts)
    engine.shutdown()
    return recorded


def main(model, file):
    from vllm import LLM, SamplingParams

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    llm = LLM(model, **ENGINE)
    recorded = {"flat": {}, "dict": {}}
    for name, request in REQUESTS.items():
        for kind in ("flat", "dict"):
            params = [
                SamplingParams(
                    max_tokens=TOKENS, logprobs=LISTED, seed=index, flat_logprobs=kind == "flat", ignore_eos=True,
                    **request,
                )  # fmt: skip
                for index in range(len(PROMPTS))
            ]
            outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
            recorded[kind][name] = [completion_fields(output.outputs[0]) for output in outputs]
    recorded["deltas"] = asyncio.run(deltas(model))
    recorded.update(openai(model))
    with open(file, "w") as out:
        json.dump(recorded, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
