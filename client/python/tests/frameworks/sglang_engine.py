"""An HTTP server that answers as SGLang's /generate does, in so far as slime and Miles ask for it, with the
log-probs of a model of transformers."""

import http.server
import json
import threading

import torch


class SglangEngine(http.server.ThreadingHTTPServer):
    def __init__(self, model):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model, self.lock = model, threading.Lock()
        self.generator = torch.Generator().manual_seed(2)
        self.weight_version = "1"
        self.requests = []
        # What it answers in the place of a generation.
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
        params, tokens = request["sampling_params"], list(request["input_ids"])
        sampled, listed = [], []
        while len(sampled) < params["max_new_tokens"] and (not sampled or sampled[-1][1] != 2):
            logits = self.model(torch.tensor([tokens])).logits[0, -1]
            log_probs = (logits / params["temperature"]).log_softmax(0)
            token = log_probs.exp().multinomial(1, generator=self.generator).item()
            sampled.append([log_probs[token].item(), token, None])
            tops = log_probs.topk(request.get("top_logprobs_num", 0))
            listed.append([[value, token, None] for value, token in zip(tops.values.tolist(), tops.indices.tolist())])
            tokens.append(token)
        kind = "stop" if sampled[-1][1] == 2 else "length"
        meta = {
            "finish_reason": {"type": kind}, "prompt_tokens": len(request["input_ids"]), "cached_tokens": 0,
            "weight_version": self.weight_version, "output_token_logprobs": sampled, "output_top_logprobs": listed,
        }  # fmt: skip
        return {"text": " ".join(str(token) for _, token, _ in sampled), "meta_info": meta}


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
