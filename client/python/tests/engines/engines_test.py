"""Real engines, the real server, and the same weights as trainer: run by tools/rl-test.

An engine's log-probs are correct if a trainer with the same weights computes the same values: D per
token is then rounding. If positions were shifted by one, D would be above 1.
"""

import asyncio
import dataclasses
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest
import unittest.mock
import urllib.request

os.environ.update(HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import numpy as np
import tiny_model
import torch
from client.python.tests import snippets
from server.testing.live_server import LiveServer
from takes_minutes import takes_minutes

import sis
import sis.torch
from sis.engines import Recorder, _vllm_arrays
from sis.engines.llama_cpp import LlamaCppAdapter
from sis.engines.transformers import TransformersAdapter
from sis.engines.vllm import VllmAdapter, hand_over_arrays
from sis.integrations._names import SESSION, name_in, name_of
from sis.integrations.verl import RecordingEngine, SisConfig

K = 20
PROMPTS = [[270, 443, 285, 264], [78, 70, 264], [282, 269, 78, 271, 300], [264, 265]]


class EnginesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        model = tiny_model.make_for(cls)
        cls.folder, cls.path = model.parent, str(model)
        cls.model = AutoModelForCausalLM.from_pretrained(cls.path, dtype=torch.float32)
        server = LiveServer(cache_bytes=256 << 20)
        cls.addClassCleanup(server.close)
        cls.address = server.address
        cls.client = sis.Client(server.address)
        cls.addClassCleanup(cls.client.close)

    def setUp(self):
        self.run_ = self.client.create_run(
            self.id().split(".")[-1], seed=1, vocabulary_size=tiny_model.VOCABULARY, top_k=K,
            log_prob_encoding="float32",
        )  # fmt: skip

    def evaluated(self, sequences, temperature=1.0, shift=0, draw=1):
        """The trainer's view of (name, prompt, tokens), each shifted by some positions."""
        slices = [sis.Slice(name, length=len(tokens)) for name, _, tokens in sequences]
        records = self.client.fetch_top_k(self.run_, slices)
        logits = []
        with torch.no_grad():
            for _, prompt, tokens in sequences:
                whole = self.model(torch.tensor([list(prompt) + list(tokens)])).logits[0]
                first = len(prompt) - 1 - shift
                logits.append(whole[first : first + len(tokens)])
        tokens = torch.tensor([token for _, _, tokens in sequences for token in tokens])
        gathered = sis.torch.gather(records, torch.cat(logits), tokens, temperature=temperature)
        self.assertTrue((records.sampled_ids[records.present] == tokens.numpy()[records.present]).all())
        return self.client.evaluate(self.run_, records, draw=draw, **gathered._asdict()).totals

    def check(self, sequences, temperature, most):
        """D per token is below `most` nats, and positions are not shifted."""
        totals = self.evaluated(sequences, temperature)
        self.assertLess(totals.mean_d, most)
        self.assertEqual(totals.envelope_violations, 0)
        self.assertGreater(totals.accept_rate, 0.2)
        self.assertGreater(self.evaluated(sequences, temperature, shift=1, draw=2).mean_d, 1)
        print(f"{self.id()}: {totals.scored} tokens, D {totals.mean_d:.2e} nats a token")
        return totals

    def test_transformers(self):
        from transformers import GenerationConfig

        config = GenerationConfig(
            do_sample=True, temperature=0.8, top_k=0, max_new_tokens=40, eos_token_id=2, pad_token_id=0,
            output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        adapter = TransformersAdapter(config)
        torch.manual_seed(1)
        prompts = torch.tensor([PROMPTS[0]] * 6)
        output = self.model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
        rows = adapter.rows(output, K)
        with Recorder(self.client, self.run_, adapter, policy_version=0) as recorder:
            for index, row in enumerate(rows):
                recorder.add(str(index), row)
        self.check([(str(i), PROMPTS[0], row.sampled_ids.tolist()) for i, row in enumerate(rows)], 0.8, 1e-5)

    @takes_minutes
    def test_the_agent(self):
        example = pathlib.Path(__file__).parents[2] / "examples/agent.py"
        done = subprocess.run(
            [sys.executable, example, self.address, self.path], capture_output=True, text=True, timeout=300
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        print(done.stdout)
        self.assertRegex(done.stdout, r"episode-0: dropped [1-9]\d* tokens from position [1-9]")
        marks = "".join(re.findall(r"^episode-\d: ([-+.]+)$", done.stdout, re.M))
        counts = re.search(r"(\d+) tokens scored, (\d+) of tools, (\d+) missing", done.stdout)
        # The dropped turn is in no sum, and what took its place is whole.
        self.assertEqual([int(count) for count in counts.groups()], [len(marks.replace(".", "")), marks.count("."), 0])
        self.assertGreater(marks.count("."), 0)
        behind = dict(re.findall(r"^(\d) versions behind: (\d+) tokens", done.stdout, re.M))
        self.assertEqual(sorted(behind), ["1", "2"])
        d, d_sis = map(float, re.search(r"D ([\d.]+), D_SIS ([\d.]+)", done.stdout).groups())
        self.assertTrue(0 < d_sis < d < 1, f"D {d}, D_SIS {d_sis}: positions are shifted")

    def llama_cpp(self):
        """Its server, of the tiny model."""
        import xllamacpp

        gguf = str(self.folder / "tiny.gguf")
        tiny_model.write_gguf(self.path, gguf)
        parameters = xllamacpp.CommonParams()
        parameters.model.path = gguf
        parameters.n_ctx = 512
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
        return xllamacpp.Server(parameters)

    def test_llama_cpp(self):
        server = self.llama_cpp()
        sequences, answers, left_out = [], [], 0
        for index, prompt in enumerate(PROMPTS * 3):
            body = {
                "prompt": prompt, "n_predict": 48, "temperature": 0.9, "samplers": ["temperature"], "n_probs": K,
                "seed": index, "return_tokens": True, "post_sampling_probs": True, "cache_prompt": False,
            }  # fmt: skip
            address, headers = server.listening_address + "/completion", {"Content-Type": "application/json"}
            asked = urllib.request.Request(address, json.dumps(body).encode(), headers)
            answer = json.loads(urllib.request.urlopen(asked).read())
            answers.append((str(index), answer))
            sequences.append((str(index), prompt, answer["tokens"]))
            left_out += len(answer["tokens"]) - len(answer["completion_probabilities"])
        adapter = LlamaCppAdapter(answers[0][1])
        with Recorder(self.client, self.run_, adapter, policy_version=0) as recorder:
            for name, answer in answers:
                recorder.add(name, answer)
        self.assertGreater(left_out, 0)
        # llama.cpp keeps keys and values in float16.
        totals = self.check(sequences, 0.9, 5e-3)
        self.assertGreaterEqual(totals.missing, left_out)

    def test_vllm(self):
        asyncio.run(self.vllm())

    async def vllm(self):
        from vllm import SamplingParams
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM

        engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=self.path, dtype="float32", enforce_eager=True, max_model_len=256, max_logprobs=64,
                logprobs_mode="processed_logprobs", max_num_seqs=16, disable_log_stats=True,
            )
        )  # fmt: skip
        self.addCleanup(engine.shutdown)

        def params(seed=None, tokens=100, kind=RequestOutputKind.DELTA):
            return SamplingParams(
                temperature=0.9, max_tokens=tokens, logprobs=K, seed=seed, flat_logprobs=True, output_kind=kind,
                ignore_eos=True,
            )  # fmt: skip

        client = self.client
        recorder = Recorder(client, self.run_, VllmAdapter(engine, params()), policy_version=1, interval=0.1)

        async def generate(name, prompt, seed, until=None):
            tokens = []
            request_id = f"{name}-{seed}"
            async for output in engine.generate({"prompt_token_ids": prompt}, params(seed), request_id=request_id):
                tokens += output.outputs[0].token_ids
                recorder.add(name, output)
                if until is not None and await until(len(tokens)):
                    await engine.abort(request_id)
                    break
            return name, prompt, tokens

        # The committed length grows while the request runs.
        seen = []

        async def recorded(length):
            if length > 20:
                seen.append(client.get_run(self.run_.id).positions)
            return length == 60

        _, prompt, tokens = await generate("aborted", PROMPTS[0], 1, until=recorded)
        self.assertTrue(any(0 < positions < 60 for positions in seen), seen)
        # Another request goes on where it ended, by other weights, say.
        recorder.policy_version = 2
        _, _, rest = await generate("aborted", prompt + tokens, 2)
        self.assertEqual(recorder.flush(), {sis.SequenceRef("aborted"): len(tokens) + 100})
        # Another attempt at a sequence.
        _, _, first = await generate("retried", PROMPTS[1], 3)
        self.assertEqual(recorder.retry("retried"), ("retried", 1))
        _, _, second = await generate("retried", PROMPTS[1], 4)
        many = await asyncio.gather(*(generate(f"s{i}", PROMPTS[i % 4], 10 + i) for i in range(16)))
        recorder.flush()
        self.assertEqual(len(client.fetch_top_k(self.run_, [("retried", 1)]).sampled_ids), len(second))
        self.check([("aborted", prompt, tokens + rest), ("retried", PROMPTS[1], first), *many], 0.9, 1e-5)

        recorder.close()
        # The page's second snippet, and new weights by its third.
        run = client.create_run("page", seed=1, vocabulary_size=tiny_model.VOCABULARY, top_k=K)
        here = {
            "client": client, "run": run, "engine": engine, "params": params(5), "step": 0, "name": "delta",
            "prompt": {"prompt_token_ids": PROMPTS[0]},
        }  # fmt: skip
        await snippets.run("engines", 2, here)
        self.assertEqual(len(client.fetch_top_k(run, ["delta"])), 100)
        # Weights come over NCCL, which needs a GPU.
        with unittest.mock.patch.object(engine, "collective_rpc", unittest.mock.AsyncMock()):
            await snippets.run("engines", 3, {"client": client, "run": run, "engine": engine})
        self.assertEqual(client.get_run("page").policy_version, 42)
        await snippets.run("engines", 2, {**here, "name": "of the new weights", "step": None})
        versions = {each.sequence.id: each.policy_version for each in client.list_sequences(run)}
        self.assertEqual(versions, {"delta": 0, "of the new weights": 42})
        await self.as_verl_uses_it(engine)

    def test_arrays_of_vllm(self):
        """vLLM's arrays are recorded with the same values as its objects."""
        import vllm
        from vllm.logprobs import FlatLogprobs
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.logprobs import LogprobsProcessor

        llm = vllm.LLM(
            self.path, dtype="float32", enforce_eager=True, max_model_len=256, max_logprobs=64, max_num_seqs=16,
            logprobs_mode="processed_logprobs",
        )  # fmt: skip
        engine = llm.llm_engine
        self.addCleanup(engine.engine_core.shutdown)

        def params(seed, **others):
            return vllm.SamplingParams(
                temperature=0.9, max_tokens=40 + 20 * (seed % 3), seed=seed, ignore_eos=True, flat_logprobs=True,
                output_kind=RequestOutputKind.FINAL_ONLY, **{"logprobs": K, **others},
            )  # fmt: skip

        # vLLM's own objects of the same steps.
        objects = {}
        update = _vllm_arrays._update

        def both(own, step):
            made = objects.setdefault(
                id(own.logprobs), dataclasses.replace(own, logprobs=FlatLogprobs(), cumulative_logprob=0.0)
            )
            LogprobsProcessor._update_sample_logprobs(made, step)
            update(own, step)

        patch = unittest.mock.patch.object(_vllm_arrays, "_update", both)
        patch.start()
        self.addCleanup(patch.stop)
        hand_over_arrays(llm)
        hand_over_arrays(llm)
        adapter = VllmAdapter(llm, params(0))
        names, done = [f"s{i}" for i in range(6)], {}
        with Recorder(self.client, self.run_, adapter, policy_version=0, interval=0.01) as recorder:
            for index, name in enumerate(names):
                engine.add_request(name, {"prompt_token_ids": PROMPTS[index % 4]}, params(index))
            # Others in the same batch have wider rows, or none.
            engine.add_request("wide", {"prompt_token_ids": PROMPTS[0]}, params(7, logprobs=K + 30))
            engine.add_request("none", {"prompt_token_ids": PROMPTS[0]}, params(8, logprobs=None))
            while engine.has_unfinished_requests():
                outputs = {output.request_id: output.outputs[0] for output in engine.step()}
                done.update(outputs)
                recorder.add_many((name, outputs[name]) for name in names if name in outputs)
        self.assertIsNone(done["none"].logprobs)
        records = self.client.fetch_top_k(self.run_, names)
        wanted = []
        for name in (*names, "wide"):
            made = objects[id(done[name].logprobs)]
            self.assertEqual(done[name].cumulative_logprob, made.cumulative_logprob)
            # Whoever reads log-probs one by one goes on.
            values = lambda position: {token: one.logprob for token, one in position.items()}
            self.assertEqual(list(map(values, done[name].logprobs)), list(map(values, made.logprobs)))
            if name != "wide":
                wanted.append(adapter.record(dataclasses.replace(done[name], logprobs=made.logprobs), K))
        fetched = (records.sampled_ids, records.sampled_log_probs, records.ids, records.log_probs)
        for got, want in zip(fetched, map(np.concatenate, zip(*wanted))):
            self.assertEqual(got.tobytes(), want.tobytes())
        prompts = [PROMPTS[index % 4] for index in range(len(names))]
        self.check([(name, prompt, list(done[name].token_ids)) for name, prompt in zip(names, prompts)], 0.9, 1e-5)

    def test_the_page(self):
        """The first snippet; then, of the same engine's arrays, the last."""
        import vllm
        from vllm.sampling_params import RequestOutputKind

        here = {
            "client": self.client, "run": self.run_, "model": self.path, "step": 0, "names": ["a", "b"],
            "prompts": [{"prompt_token_ids": prompt} for prompt in PROMPTS[:2]],
        }  # fmt: skip
        # To compile a model takes minutes.
        with unittest.mock.patch.object(vllm, "LLM", functools.partial(vllm.LLM, enforce_eager=True)):
            snippets.run("engines", 1, here)
        self.assertEqual(len(self.client.fetch_top_k(self.run_, ["a", "b"])), 2 * vllm.SamplingParams().max_tokens)
        llm = here["llm"]
        params = vllm.SamplingParams(
            logprobs=K, max_tokens=200, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
        )
        with Recorder(self.client, self.run_, VllmAdapter(llm, params), policy_version=0) as recorder:
            for name in ("c", "d"):
                llm.llm_engine.add_request(name, {"prompt_token_ids": PROMPTS[0]}, params)
            snippets.run("engines", 5, {"llm": llm, "recorder": recorder})
        self.assertEqual(len(self.client.fetch_top_k(self.run_, ["c", "d"])), 400)

    async def as_verl_uses_it(self, engine):
        """Outputs that repeat, with the sampled tokens' log-probs only, by which the actor finds the
        records; and a request that is aborted, and continued."""
        from vllm import SamplingParams

        settings = SisConfig(address=self.address, run="verl", top_k=K, log_prob_encoding="float32")
        recording = RecordingEngine(engine, settings, tiny_model.VOCABULARY, lambda: 1)

        async def generate(prompt, seed, abort_after=None, session=None):
            told = session and {SESSION: session}
            params = SamplingParams(
                temperature=0.9, max_tokens=40, logprobs=0, seed=seed, ignore_eos=True, extra_args=told
            )
            last = None
            async for output in recording.generate({"prompt_token_ids": prompt}, params, request_id=f"verl-{seed}"):
                last = output.outputs[0]
                if abort_after is not None and len(last.token_ids) == abort_after:
                    await engine.abort(f"verl-{seed}")
            # As verl's server reads it.
            return last.token_ids, [listed[token].logprob for token, listed in zip(last.token_ids, last.logprobs)]

        made = await asyncio.gather(*(generate(PROMPTS[i % 4], 100 + i) for i in range(8)))
        first, first_log_probs = await generate(PROMPTS[0], 200, abort_after=10)
        self.assertLess(len(first), 40)
        rest, rest_log_probs = await generate(PROMPTS[0] + list(first), 201)
        made = [(PROMPTS[i % 4], *one) for i, one in enumerate(made)]
        made.append((PROMPTS[0], [*first, *rest], [*first_log_probs, *rest_log_probs]))
        tokens, _ = await generate(PROMPTS[1], 202, session="uid_3")
        of_session = [(name_in("uid_3", PROMPTS[1]), PROMPTS[1], tokens)]
        await recording.close()
        self.run_ = self.client.get_run("verl").run
        self.check([(name_of(*one), one[0], one[1]) for one in made] + of_session, 0.9, 1e-5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
