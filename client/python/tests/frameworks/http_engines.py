"""HTTP servers that answer as SGLang's /generate does, in so far as slime and Miles ask for it, and vLLM's
/inference/v1/generate, for vime, with the log-probs of a model of transformers."""

import http.server
import json
import operator
import threading

import torch

EOS = 2


class HttpEngine(http.server.ThreadingHTTPServer):
    """A subclass has `name`, as it is in the names of a framework's arguments; of a request the `prompt`, the `longest`
    response, and how many log-probs are `listed` at each position; and `told`, which makes an answer of positions: of
    each a token, its log-prob, and those of the listed tokens, by id."""

    def __init__(self, model):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model, self.lock = model, threading.Lock()
        self.generator = torch.Generator().manual_seed(2)
        self.weight_version = "1"
        self.requests = []
        # The answer to return instead of a generation.
        self.instead = None
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def close(self):
        self.shutdown()
        self.thread.join()
        self.server_close()

    @torch.no_grad()
    def answer(self, request):
        if self.instead is not None:
            return self.instead
        prompt, positions = self.prompt(request), []
        tokens = list(prompt)
        while len(positions) < self.longest(request) and tokens[-1] != EOS:
            logits = self.model(torch.tensor([tokens])).logits[0, -1]
            log_probs = (logits / request["sampling_params"]["temperature"]).log_softmax(0)
            token = log_probs.exp().multinomial(1, generator=self.generator).item()
            tops = log_probs.topk(self.listed(request))
            listed = dict(zip(tops.indices.tolist(), tops.values.tolist()))
            positions.append((token, log_probs[token].item(), listed))
            tokens.append(token)
        return self.told(positions, "stop" if tokens[-1] == EOS else "length", len(prompt))


class SglangEngine(HttpEngine):
    name = "sglang"
    prompt = operator.itemgetter("input_ids")
    longest = staticmethod(lambda request: request["sampling_params"]["max_new_tokens"])
    listed = staticmethod(lambda request: request.get("top_logprobs_num", 0))

    def told(self, positions, reason, prompt=0):
        meta = {
            "finish_reason": {"type": reason}, "prompt_tokens": prompt, "cached_tokens": 0,
            "weight_version": self.weight_version,
            "output_token_logprobs": [[value, token, None] for token, value, _ in positions],
            "output_top_logprobs": [
                [[value, token, None] for token, value in listed.items()] for _, _, listed in positions
            ],
        }  # fmt: skip
        return {"text": " ".join(str(token) for token, _, _ in positions), "meta_info": meta}


class VllmEngine(HttpEngine):
    name = "vllm"
    prompt = operator.itemgetter("token_ids")
    longest = staticmethod(lambda request: request["sampling_params"]["max_tokens"])
    listed = staticmethod(lambda request: request["sampling_params"]["logprobs"])

    def told(self, positions, reason, prompt=0):
        content = []
        for token, own, listed in positions:
            # The sampled token comes first, and takes the place of another.
            tops = list({token: own, **listed}.items())[: len(listed)]
            here = [{"token_id": top, "logprob": value} for top, value in tops]
            content.append({"token_id": token, "logprob": own, "top_logprobs": here})
        choice = {
            "index": 0, "finish_reason": reason, "token_ids": [token for token, _, _ in positions],
            "logprobs": {"content": content},
            "weight_versions": [{"version": self.weight_version, "start": 0, "end": len(positions)}],
        }  # fmt: skip
        return {"choices": [choice], "usage": {"prompt_tokens": prompt, "completion_tokens": len(positions)}}


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(request)
            answer = json.dumps(self.server.answer(request)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_args):
        pass
