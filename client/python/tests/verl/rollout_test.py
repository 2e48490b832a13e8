"""Recorded outputs of vLLM (tests/engines/record_vllm.py), through the engine of verl's rollout servers, and a service
in this process."""

import asyncio
import contextlib
import dataclasses
import functools
import json
import pathlib
import types
import unittest
import unittest.mock
import warnings

import fake_service
import numpy as np
from vllm_objects import FlatLogprobs, SamplingParams

from sis.engines._recorder import Recorder
from sis.integrations._names import SESSION, name_in, name_of
from sis.integrations.verl import RecordingEngine, SisConfig
from sis.integrations.verl._settings import config_of, for_rollouts

RECORDED = json.loads((pathlib.Path(__file__).parents[1] / "engines/testdata/vllm.json").read_text())["flat"]["plain"]
# The values in record_vllm.py.
PROMPTS = [[270, 443, 285, 264], [78, 70, 264]]
LISTED = 8


def part(listed, first, last):
    starts, ends = listed["start_indices"][first:last], listed["end_indices"][first:last]
    here = slice(starts[0], ends[-1])
    tokens = listed["token_ids"][here]
    return FlatLogprobs(
        [start - starts[0] for start in starts], [end - starts[0] for end in ends], tokens, listed["logprobs"][here],
        [1] * len(tokens), [None] * len(tokens),
    )  # fmt: skip


class Engine:
    """Returns the recorded response of a prompt. `abort_after` tokens, or what is left of the
    response after a prompt that holds its beginning."""

    vllm_config = types.SimpleNamespace(
        model_config=types.SimpleNamespace(logprobs_mode="processed_logprobs"),
        speculative_config=None,
    )

    def __init__(self):
        self.abort_after = None
        self.asked = []

    async def generate(self, prompt, sampling_params, request_id):
        self.asked.append(sampling_params)
        before = prompt["prompt_token_ids"]
        index = next(i for i, start in enumerate(PROMPTS) if before[: len(start)] == start)
        whole = RECORDED[index]
        first = len(before) - len(PROMPTS[index])
        last = len(whole["token_ids"])
        if self.abort_after is not None:
            last = first + self.abort_after
        for stop in range(first + 1, last + 1):
            await asyncio.sleep(0)
            ended = stop == last
            reason = None if not ended else "abort" if self.abort_after is not None else "length"
            completion = types.SimpleNamespace(
                token_ids=whole["token_ids"][first:stop],
                logprobs=part(whole["logprobs"], first, stop),
                finish_reason=reason,
            )
            yield types.SimpleNamespace(prompt_token_ids=list(before), outputs=[completion], finished=ended)


def expected_name(index):
    fields = RECORDED[index]
    listed = fields["logprobs"]
    own = [listed["logprobs"][start] for start in listed["start_indices"]]
    return name_of(PROMPTS[index], fields["token_ids"], own)


@contextlib.contextmanager
def warned(test, times):
    """As they are shown: the same text once."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        yield
    test.assertEqual(len(seen), times, [str(warning.message) for warning in seen])


class NamesTest(unittest.TestCase):
    def test_one_bit_of_what_was_sampled_is_another_name(self):
        context, ids, values = [5, 6], [1, 2, 3], np.float32([-1, -0.5, -2])
        name = name_of(context, ids, values)
        self.assertEqual(name, name_of(np.int32(context), np.int64(ids), values.astype(np.float64)))
        others = [
            ([5, 7], ids, values), ([5, 6, 1], ids[1:], values[1:]), ([5], [6, 1, 2, 3], np.append(values, -1)),
            (context, [1, 2, 4], values), (context, ids, np.nextafter(values, np.float32(0))),
        ]  # fmt: skip
        self.assertEqual(len({name, *(name_of(*other) for other in others)}), 1 + len(others))
        with self.assertRaisesRegex(ValueError, r"log_probs has shape \[2\], must be \[3\]"):
            name_of(context, ids, values[:2])


class SettingsTest(unittest.TestCase):
    def test_names_what_is_wrong(self):
        self.assertIsNone(config_of(None))
        self.assertIsNone(config_of({"other": 1}))
        self.assertEqual(config_of({"sis": {"address": ["a:1", "b:1"], "run": "r"}}).address, ["a:1", "b:1"])
        for given, message in (
            ({"address": "a:1"}, "custom.sis.run is missing"),
            ({"run": "r"}, "custom.sis.address is missing"),
            ({"address": "a:1", "run": "r", "topk": 5}, "custom.sis.topk is unknown"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                config_of({"sis": given})
        settings = config_of({"sis": {"address": "a:1", "run": "r", "mass": 0.97}})
        # Cut sets, unless they have to tell what a filter kept.
        for rollout, mass in (({"top_p": 1.0, "top_k": -1}, 0.97), ({"top_p": 0.9, "top_k": -1}, 0), ({"top_k": 50}, 0)):
            self.assertEqual(for_rollouts(settings, rollout).mass, mass)


class RolloutTest(fake_service.ServiceTest):
    def setUp(self):
        super().setUp()
        self.settings = SisConfig(address=self.address, run="run", top_k=5)
        self.version = None

    def ran(self, scenario, **changed):
        """`scenario(recording, engine)`, and all that it left stored."""

        async def run():
            engine = Engine()
            settings = dataclasses.replace(self.settings, **changed)
            recording = RecordingEngine(engine, settings, 512, lambda: self.version)
            result = await scenario(recording, engine)
            await recording.close()
            return result

        return asyncio.run(run())

    @staticmethod
    async def generated(recording, prompt, params=None):
        last = None
        async for output in recording.generate({"prompt_token_ids": prompt}, params or SamplingParams(), "id"):
            last = output
        return last

    def fetched(self, index):
        return self.client.fetch_top_k(self.client.get_run("run").run, [expected_name(index)])

    def check(self, index):
        fields = RECORDED[index]
        listed = fields["logprobs"]
        records = self.fetched(index)
        self.assertEqual(records.sampled_ids.tolist(), fields["token_ids"])
        for row, (start, end) in enumerate(zip(listed["start_indices"], listed["end_indices"])):
            values = dict(zip(listed["token_ids"][start:end], listed["logprobs"][start:end]))
            self.assertEqual(records.sampled_log_probs[row], np.float32(values[fields["token_ids"][row]]))
            best = sorted(values, key=values.get, reverse=True)[:5]
            # A sampled token beyond the listed ones is listed too.
            self.assertEqual(values[records.ids[row, 0]], values[best[0]])
            self.assertTrue(set(records.ids[row].tolist()) <= set(values))
        return records

    def test_what_ends_is_stored_under_its_name_and_verl_gets_what_it_asked_for(self):
        async def both(recording, engine):
            outputs = await asyncio.gather(*(self.generated(recording, prompt) for prompt in PROMPTS))
            return outputs, engine.asked

        outputs, asked = self.ran(both)
        self.assertEqual([(params.logprobs, params.flat_logprobs) for params in asked], [(5, True)] * 2)
        for index, output in enumerate(outputs):
            completion, fields = output.outputs[0], RECORDED[index]
            given = completion.logprobs
            self.assertEqual(given.token_ids, fields["token_ids"])
            self.assertEqual((given.start_indices[-1], given.end_indices[-1]), (len(given) - 1, len(given)))
            # The name that an actor finds from what it is handed.
            self.assertEqual(name_of(PROMPTS[index], completion.token_ids, given.logprobs), expected_name(index))
            self.check(index)

    def test_an_aborted_request_and_the_one_that_continues_it_are_one_sequence(self):
        async def resumed(recording, engine):
            self.version = 3
            engine.abort_after = 4
            first = await self.generated(recording, PROMPTS[0])
            # Another request in between, and new weights.
            engine.abort_after = None
            await self.generated(recording, PROMPTS[1])
            self.version = 4
            await self.generated(recording, PROMPTS[0] + first.outputs[0].token_ids)

        self.ran(resumed)
        self.check(0)
        self.check(1)
        self.assertEqual([self.blocks(expected_name(index)) for index in (0, 1)], [[(0, 4, 3), (4, 8, 4)], [(0, 12, 3)]])

    def test_the_same_sample_twice_is_recorded_once(self):
        async def twice(recording, _):
            await self.generated(recording, PROMPTS[0])
            await self.generated(recording, PROMPTS[0])

        self.ran(twice)
        self.check(0)

    def test_a_session_names_what_it_generates(self):
        """Also where another one generates the same, and where requests are aborted."""

        async def sessions(recording, engine):
            of_a, of_b = (SamplingParams(extra_args={SESSION: f"uid_{number}"}) for number in range(2))
            await self.generated(recording, PROMPTS[0], of_a)
            engine.abort_after = 4
            first = await self.generated(recording, PROMPTS[0], of_b)
            await self.generated(recording, PROMPTS[0])
            engine.abort_after = None
            await self.generated(recording, PROMPTS[0] + first.outputs[0].token_ids, of_b)
            # Once more after the same context.
            await self.generated(recording, PROMPTS[1], of_a)
            await self.generated(recording, PROMPTS[1], of_a)

        self.ran(sessions)
        self.check(1)
        names = [name_in(f"uid_{number}", PROMPTS[0]) for number in range(2)]
        self.assertEqual(len({*names, name_in("uid_0", PROMPTS[1])}), 3)
        run = self.client.get_run("run").run
        records = self.client.fetch_top_k(run, [*names, expected_name(0)])
        tokens = RECORDED[0]["token_ids"]
        self.assertEqual([part.length for part in records.slices], [len(tokens), len(tokens), 0])
        self.assertEqual(records.sampled_ids.tolist(), tokens + tokens)

    def test_what_draws_nothing_or_asks_for_no_log_probs_is_left_alone(self):
        async def others(recording, engine):
            await self.generated(recording, PROMPTS[0], SamplingParams(temperature=0.0))
            await self.generated(recording, PROMPTS[1], SamplingParams(logprobs=None))
            return engine.asked

        asked = self.ran(others)
        self.assertEqual([params.logprobs for params in asked], [0, None])
        self.assertEqual(self.service.runs, {})

    def test_generation_goes_on_without_a_server_and_each_outage_warns_once(self):
        async def outages(recording, _):
            recorded = []
            for version, there in enumerate((True, False, False, True, False, True)):
                self.service.unavailable = not there
                recording._recorded.clear()
                await recording.advance_version(version)
                output = await self.generated(recording, PROMPTS[version % 2])
                self.assertEqual(output.outputs[0].token_ids, RECORDED[version % 2]["token_ids"])
                await recording.flush()
                recorded.append(self.service.runs["run"].policy_version)
            return recorded

        impatient = functools.partial(Recorder, retry_timeout=0.01)
        with unittest.mock.patch("sis.integrations.verl._rollout.Recorder", impatient), warned(self, 2):
            self.assertEqual(self.ran(outages), [0, 0, 0, 3, 3, 5])

    def test_a_run_that_another_training_has_begun_anew_is_opened_again(self):
        async def superseded(recording, _):
            self.version = 9
            await recording.advance_version(9)
            await self.generated(recording, PROMPTS[0])
            await recording.flush()
            run = self.client.get_run("run").run
            self.settings.create_run(self.client, 512, run.incarnation + 1, algorithm="verl")
            recording._next_attempt = 0.0
            self.version = 4
            await recording.advance_version(4)
            await self.generated(recording, PROMPTS[1])

        with warned(self, 0):
            self.ran(superseded)
        self.check(1)
        status = self.client.get_run("run")
        self.assertEqual((status.run.incarnation, status.policy_version), (2, 4))


if __name__ == "__main__":
    unittest.main(verbosity=2)
