"""Records answers of llama.cpp's server for llama_cpp_test: record_llama_cpp.py GGUF FILE.

The environment is that of tools/rl-test.
"""

import json
import sys
import urllib.request

import xllamacpp

PROMPT = [270, 443, 285, 264, 78, 70]
# By name: as sampled, and filtered with the probabilities after the filters.
REQUESTS = {
    "raw": {"samplers": ["temperature"], "temperature": 1.0},
    "post_sampling": {
        "samplers": ["top_k", "top_p", "temperature"], "temperature": 0.7, "top_k": 6, "top_p": 0.9,
        "post_sampling_probs": True,
    },
}  # fmt: skip


def main(model, file):
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.n_ctx = 512
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    recorded = {}
    for name, request in REQUESTS.items():
        body = {
            "prompt": PROMPT, "n_predict": 24, "n_probs": 8, "seed": 3, "return_tokens": True,
            "cache_prompt": False, **request,
        }  # fmt: skip
        asked = urllib.request.Request(
            server.listening_address + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        answer = json.loads(urllib.request.urlopen(asked).read())
        # Half a character is no text that a file could hold.
        for field in ("prompt", "content", "timings"):
            answer.pop(field)
        recorded[name] = answer
    with open(file, "w") as out:
        json.dump(recorded, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
