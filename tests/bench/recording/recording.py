"""Measures the cost of log-probs to vLLM, and the additional cost of recording them.

    tools/rl-environment rl
    bazel run //tests/bench/recording

The first installs vLLM and SmolLM2-135M into build/rl. The same requests are made in every way, in turn, in
one process: without log-probs; with log-probs of 20 and 100 tokens, as dictionaries, as FlatLogprobs and as
arrays; and with a recorder that sends the log-probs of 20 tokens to a server on this machine. The engine returns whole
outputs, as it does to TRL and verl. A small model (`--layers 2`) and more `--requests`
come closer to the tokens a second of a GPU.

Prints medians over repetitions for each way, with minimum and maximum: tokens per second; the ratio to the
way without log-probs in the same repetition; and, where recorded, microseconds of processor time per token, of
the recorder's calls in the engine's thread and of its own thread.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple, Optional

from tests.bench import environment

RECORDED = 20
FORMS = ("dictionaries", "flat", "arrays")


class Way(NamedTuple):
    log_probs: Optional[int]
    form: str = "flat"
    recorded: bool = False

    def __str__(self):
        if self.log_probs is None:
            return "no log-probs"
        return f"{self.log_probs}, {self.form}" + (", recorded" if self.recorded else "")


WAYS = (
    Way(None),
    *(Way(log_probs, form) for log_probs in (RECORDED, 100) for form in FORMS),
    *(Way(RECORDED, form, recorded=True) for form in FORMS),
)


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


class Engine:
    def __init__(self, model, client, requests, tokens, layers):
        import vllm

        small = {"hf_overrides": {"num_hidden_layers": layers}, "load_format": "dummy"} if layers else {}
        self._llm = vllm.LLM(
            model, dtype="float32", max_model_len=tokens + 64, max_num_seqs=requests,
            logprobs_mode="processed_logprobs", enable_prefix_caching=False, max_logprobs=100,
            **small,
        )  # fmt: skip
        self._client, self._requests, self._tokens = client, requests, tokens
        vocabulary = self._llm.llm_engine.model_config.get_vocab_size()
        self._run = client.create_run("recording", seed=1, vocabulary_size=vocabulary, top_k=RECORDED)
        self._made = 0

    def once(self, way):
        """Tokens per second, and the recorder's seconds of processor time per token: of its calls, of its thread."""
        import vllm
        from vllm.sampling_params import RequestOutputKind

        from sis.engines import Recorder
        from sis.engines.vllm import VllmAdapter, hand_over_arrays

        engine, recorder, calls = self._llm.llm_engine, None, 0.0
        # The processor's own method is on its class.
        vars(engine.output_processor).pop("add_request", None)
        if way.form == "arrays":
            hand_over_arrays(engine)
        params = vllm.SamplingParams(
            max_tokens=self._tokens, logprobs=way.log_probs, flat_logprobs=way.form == "flat", ignore_eos=True,
            seed=1, output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        if way.recorded:
            recorder = Recorder(self._client, self._run, VllmAdapter(self._llm, params), policy_version=0)
            clock = time.pthread_getcpuclockid(recorder._writer.ident)
        self._made += 1
        began, count = time.perf_counter(), 0
        for number in range(self._requests):
            engine.add_request(f"{self._made}-{number}", {"prompt_token_ids": [number + 5, 7, 9]}, params)
        while engine.has_unfinished_requests():
            outputs = engine.step()
            if recorder is not None and outputs:
                adding = time.thread_time()
                recorder.add_many((output.request_id, output) for output in outputs)
                calls += time.thread_time() - adding
            count += sum(len(output.outputs[0].token_ids) for output in outputs)
        if recorder is not None:
            recorder.flush()
        took = time.perf_counter() - began
        of_thread = 0.0
        if recorder is not None:
            of_thread = time.clock_gettime(clock)
            recorder.close()
            self._client.release(self._run, [f"{self._made}-{number}" for number in range(self._requests)])
        return count / took, calls / count, of_thread / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--requests", type=int, default=16, help="side by side")
    parser.add_argument("--tokens", type=int, default=128, help="of each")
    parser.add_argument("--model", help="its folder; SmolLM2-135M-Instruct, if left out")
    parser.add_argument("--layers", type=int, help="of the model, with random weights; its own, if left out")
    arguments = parser.parse_args()

    import sis
    from server.testing.live_server import LiveServer

    speeds, calls, threads = ({way: [] for way in WAYS} for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or f"{folder}/model"
        if not arguments.model:
            weights = pathlib.Path(__file__).absolute().parents[3] / "client/demo/llm/weights.py"
            subprocess.run([sys.executable, "-P", weights, model], check=True)
        server = LiveServer(cache_bytes=1 << 30)
        try:
            with sis.Client(server.address) as client:
                engine = Engine(model, client, arguments.requests, arguments.tokens, arguments.layers)
                # The first also compiles and allocates.
                engine.once(WAYS[-1])
                for _ in range(arguments.repetitions):
                    for way in WAYS:
                        speed, of_calls, of_thread = engine.once(way)
                        speeds[way].append(speed)
                        calls[way].append(1e6 * of_calls)
                        threads[way].append(1e6 * of_thread)
        finally:
            server.kill()
    heads = ("tokens/s", "of that without", "calls, us a token", "thread, us a token")
    print(f"{'log-probs per token':32}", *(f"{head:>22}" for head in heads))
    for way in WAYS:
        ratios = [speed / alone for speed, alone in zip(speeds[way], speeds[WAYS[0]])]
        columns = [spread(speeds[way], 0), spread(ratios, 3)]
        columns += [spread(used[way], 2) for used in (calls, threads) if way.recorded]
        print(f"{str(way):32}", *(f"{column:>22}" for column in columns))


if __name__ == "__main__":
    engine_alone = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    environment.start_again_in("rl", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", **engine_alone)
    main()
