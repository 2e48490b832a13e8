"""Measures a recorder's cost to the engine's machine, without an engine: processor time per token, of its
calls and of its thread, up to the ack.

    bazel run //tests/bench/recording:recorder_alone

Outputs of the three forms of vLLM's log-probs (dictionaries, FlatLogprobs, arrays) are made up beforehand, as
whole responses and as deltas of one token, which are added request by request in steps, and recorded
over TCP. Printed are the median over repetitions, with the least and the
most.
"""

import argparse
import gc
import itertools
import statistics
import time
import types

import numpy as np

import sis
from server.testing.live_server import LiveServer
from sis.engines import Recorder
from sis.engines.vllm import VllmAdapter

VOCABULARY = 32000
FORMS = ("dictionaries", "flat", "arrays")


class Flat:
    """As vLLM's FlatLogprobs."""

    def __init__(self, ids, log_probs):
        width = ids.shape[1]
        self.start_indices = list(range(0, ids.size, width))
        self.end_indices = list(range(width, ids.size + width, width))
        self.token_ids, self.logprobs = ids.ravel().tolist(), log_probs.ravel().tolist()

    def __len__(self):
        return len(self.start_indices)


def form_of(form, ids, log_probs):
    if form == "flat":
        return Flat(ids, log_probs)
    if form == "arrays":
        from sis.engines._vllm_arrays import ArrayLogprobs

        made = ArrayLogprobs(ids.shape[1])
        for position in range(len(ids)):
            # The arrays of a step, with a row per request.
            made.add_step(ids[position : position + 1], log_probs[position : position + 1])
        return made
    rows = zip(ids.tolist(), log_probs.tolist())
    return [{token: types.SimpleNamespace(logprob=value) for token, value in zip(*row)} for row in rows]


def response(random, tokens, top_k):
    """ids and log-probs [T, K + 1], the sampled token's first."""
    values = np.sort(random.standard_normal((tokens, top_k)).astype(np.float32) - 6, axis=1)[:, ::-1]
    ids = np.argsort(random.random((tokens, 4 * top_k)), axis=1)[:, :top_k].astype(np.int32)
    column = random.integers(0, top_k, tokens)[:, None]
    take = lambda array: np.concatenate([np.take_along_axis(array, column, 1), array], axis=1)
    return take(ids), take(values)


def output(form, ids, log_probs, ended):
    completion = types.SimpleNamespace(
        token_ids=ids[:, 0].tolist(), logprobs=form_of(form, ids, log_probs), finish_reason="stop" if ended else None
    )
    return types.SimpleNamespace(outputs=[completion])


def adapter(top_k):
    model = types.SimpleNamespace(logprobs_mode="processed_logprobs")
    config = types.SimpleNamespace(model_config=model, speculative_config=None)
    params = types.SimpleNamespace(
        temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, presence_penalty=0.0, frequency_penalty=0.0,
        repetition_penalty=1.0, logprobs=top_k, output_kind=types.SimpleNamespace(name="DELTA"),
    )  # fmt: skip
    return VllmAdapter(config, params)


def steps_of(form, deltas, arguments):
    """Returns for each step of the engine its outputs, each with the number of its request."""
    random = np.random.default_rng(1)
    made = [response(random, arguments.tokens, arguments.top_k) for _ in range(arguments.requests)]
    if not deltas:
        return [[(number, output(form, *of_one, True)) for number, of_one in enumerate(made)]]
    # A few steps over and over: what an engine has just returned is in the processor's caches.
    step = lambda at, ended: [
        (number, output(form, ids[at : at + 1], log_probs[at : at + 1], ended))
        for number, (ids, log_probs) in enumerate(made)
    ]
    few = [step(at, False) for at in range(8)]
    return [few[at % len(few)] for at in range(arguments.tokens - 1)] + [step(8, True)]


def once(client, run, names, steps, top_k):
    """Seconds of processor time."""
    recorder = Recorder(client, run, adapter(top_k), policy_version=0, interval=0.1)
    clock = time.pthread_getcpuclockid(recorder._writer.ident)
    began = time.thread_time()
    many = getattr(recorder, "add_many", None)
    for step in steps:
        named = [(names[number], made) for number, made in step]
        if many is not None:
            many(named)
        else:
            for name, made in named:
                recorder.add(name, made)
    own = time.thread_time() - began
    recorder.flush()
    own += time.clock_gettime(clock)
    recorder.close()
    client.release(run, names)
    return own


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--requests", type=int, default=32, help="side by side")
    parser.add_argument("--tokens", type=int, default=512, help="of each")
    parser.add_argument("--top-k", type=int, default=20)
    parser.add_argument("--forms", nargs="*", default=FORMS)
    arguments = parser.parse_args()

    server = LiveServer(cache_bytes=1 << 30)
    kinds = list(itertools.product(arguments.forms, ("whole", "deltas")))
    outputs = {kind: steps_of(kind[0], kind[1] == "deltas", arguments) for kind in kinds}
    # An engine doesn't keep millions of outputs, which the garbage collector would look at.
    gc.freeze()
    spent = {kind: [] for kind in kinds}
    names = itertools.count()
    try:
        with sis.Client(server.address) as client:
            run = client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=arguments.top_k)
            for _ in range(arguments.repetitions):
                for kind, values in spent.items():
                    named = [str(next(names)) for _ in range(arguments.requests)]
                    used = once(client, run, named, outputs[kind], arguments.top_k)
                    values.append(1e6 * used / (arguments.requests * arguments.tokens))
    finally:
        server.kill()
    print(f"{'log-probs':14} {'outputs':8} us a token")
    for (form, kind), values in spent.items():
        values = values[1:] or values  # the first also allocates
        print(f"{form:14} {kind:8} {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
