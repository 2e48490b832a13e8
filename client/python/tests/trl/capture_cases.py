"""Malformed outputs of TRL's engine."""

import asyncio
import math
import types
import unittest

from vllm_objects import FlatLogprobs

import sis
from sis import MissingReason
from sis.engines import MalformedOutput
from sis.engines._adapter import reasons_of
from sis.engines.vllm import VllmAdapter
from sis.integrations.trl import SisConfig, _async_rollouts, _capture

K = 2


def output(tokens, own):
    """Each position lists the sampled token and two others."""
    told = FlatLogprobs.of([{drawn: log_prob, 90: -0.5, 91: -1.5} for drawn, log_prob in zip(tokens, own)])
    completion = types.SimpleNamespace(token_ids=tokens, logprobs=told, finish_reason="stop")
    return types.SimpleNamespace(outputs=[completion])


class CaptureTest(unittest.TestCase):
    def adapter(self):
        model = types.SimpleNamespace(logprobs_mode="processed_logprobs")
        config = types.SimpleNamespace(model_config=model, speculative_config=None)
        return VllmAdapter(config, types.SimpleNamespace(temperature=1.0, logprobs=K))

    def test_an_output_that_is_malformed_costs_itself_only(self):
        turn = _capture._VllmTurn(K, 0)
        outputs = [output([1, 2], [-2.0, -3.0]), output([3, 4], [-9999.0, -4.0]), output([5, 6], [-5.0, -6.0])]
        outputs[2].outputs[0].logprobs.logprobs.pop()
        turn.take(self.adapter(), outputs)
        records = turn.records([[1, 2], [3, 4], [5, 6]])
        self.assertEqual([record.sampled_ids.tolist() for record in records], [[1, 2], [3, 4], [5, 6]])
        self.assertEqual(
            [reasons_of(record.sampled_log_probs).tolist() for record in records],
            [[0, 0], [MissingReason.NO_LOG_PROB, 0], [MissingReason.INVALID_LOG_PROB] * 2],
        )

    def test_a_null_of_the_server_costs_one_position(self):
        turn = _capture._ServerTurn(K, sis.Sampling("processed"))
        completions, ids = [[1, 2], [3]], [[[1, 90, 91], [90, 2, 91]], [[90, 91, 3]]]
        # TRL's server sends null for NaN.
        for value, reason in (
            (None, MissingReason.INVALID_LOG_PROB), (math.nan, MissingReason.INVALID_LOG_PROB),
            (-9999.0, MissingReason.NO_LOG_PROB), (-math.inf, MissingReason.INFINITE_LOG_PROB),
        ):  # fmt: skip
            log_probs = [[[-2.0, -0.5, -1.5], [-0.5, value, -1.5]], [[-0.5, -1.5, -4.0]]]
            own = turn.take(completions, log_probs, ids)
            self.assertEqual((own[0][0], own[1]), ([-2.0], [[-4.0]]))
            records = turn.records(completions)
            self.assertEqual([record.sampled_ids.tolist() for record in records], completions)
            reasons = [reasons_of(record.sampled_log_probs).tolist() for record in records]
            self.assertEqual(reasons, [[0, reason], [0]])
        for wrong, message in (
            ([[[-2.0, -0.5, -1.5]], [[-0.5, -1.5, -4.0]]], r"logprobs\[0\]: 1 positions, must be 2"),
            ([[[-2.0, -0.5], [-0.5, -1.0, -1.5]], [[-0.5, -1.5, -4.0]]], r"logprobs\[0\].*different numbers"),
        ):
            with self.assertRaisesRegex(MalformedOutput, message):
                turn.take(completions, wrong, ids)

    def test_the_asynchronous_trainer_goes_on_with_an_answer_that_is_malformed(self):
        token = "token_id:{}".format
        tops = [{token(drawn): -2.0, token(90): -0.5, token(91): -1.5} for drawn in (1, 2)]
        told = {"tokens": [token(1), token(2)], "token_logprobs": [-2.0, -9999.0], "top_logprobs": tops}
        for log_probs, kinds, reason in (
            (told, [sis.Block, sis.Gap, sis.Seal], MissingReason.NO_LOG_PROB),
            (None, [sis.Gap, sis.Seal], MissingReason.INVALID_LOG_PROB),
        ):
            answer = {"choices": [{"token_ids": [1, 2], "logprobs": log_probs, "finish_reason": "stop"}]}

            class Loop:
                async def _post(self, path, payload, answer=answer):
                    return answer

            made = type("Recording", (_async_rollouts.SisRolloutLoopMixin, Loop), {})
            loop = made.__new__(made)
            config = types.SimpleNamespace(top_k=K, vocabulary_size=100)
            loop._sis_run, loop.lora_name, loop.model_version = types.SimpleNamespace(config=config), None, 4
            loop._sis_service = types.SimpleNamespace(config=SisConfig())
            payload = {"model": "m", "temperature": 1.0, "return_token_ids": True, "logprobs": 0, "prompt": []}
            with self.assertWarnsRegex(RuntimeWarning, "SIS: position [01] of an answer is not recorded"):
                answered = asyncio.run(loop._post("/v1/completions", payload))
            row = types.SimpleNamespace(
                completion_mask=[1, 1], old_log_probs=answered["choices"][0]["logprobs"]["token_logprobs"]
            )
            entries = _async_rollouts._entries_of_row("a", row)
            self.assertEqual([type(entry) for entry in entries], kinds)
            self.assertEqual(entries[-2].reason, reason)
