"""The plug-in of `vllm serve`, in an engine built as vLLM's is in so far as it matters."""

import copy
import os
import sys
import time
import types
import unittest
import unittest.mock
import warnings
from typing import NamedTuple

import fake_service
import numpy as np

import sis
from sis.engines import _vllm_plugin
from sis.engines._vllm_plugin import ServingRecorder

VOCABULARY, TOP_K = 40, 4


class Step(NamedTuple):
    """As vLLM's LogprobsLists."""

    logprob_token_ids: np.ndarray
    logprobs: np.ndarray
    sampled_token_ranks: np.ndarray
    cu_num_generated_tokens: None = None


class Params:
    top_p, top_k, min_p, presence_penalty, frequency_penalty, repetition_penalty = 1.0, 0, 0.0, 0.0, 0.0, 1.0
    logprob_token_ids = None

    def __init__(self, logprobs=None, temperature=1.0):
        self.logprobs, self.temperature = logprobs, temperature

    def clone(self):
        return copy.copy(self)


class State:
    """As vLLM's RequestState, with its LogprobsProcessor."""

    def __init__(self, request, parent, index):
        self.external_req_id, self.parent_req, self.request_index = request.external_req_id, parent, index
        self.num_logprobs = request.sampling_params.logprobs
        # Columns of each step that the answer has.
        self.answered = []
        self.tokens, self.spans = [], []
        self.logprobs_processor = self.detokenizer = self

    def _update_sample_logprobs(self, step):
        assert self.num_logprobs is not None
        self.answered.append(step.logprobs.shape[1])

    @property
    def output_token_ids(self):
        return self.tokens

    def _weight_version_spans(self):
        stops = [*(start for _, start in self.spans[1:]), len(self.tokens)]
        return [
            types.SimpleNamespace(version=version, start=start, end=stop)
            for (version, start), stop in zip(self.spans, stops)
        ]


class Processor:
    """As vLLM's OutputProcessor."""

    def __init__(self):
        self.request_states = {}

    def add_request(self, request, prompt, parent=None, index=0, queue=None):
        self.request_states[request.request_id] = State(request, parent, index)

    def process_outputs(self, outputs, *_, weight_version=None):
        for output in outputs:
            state = self.request_states.get(output.request_id)
            if state is None:
                continue
            if not state.spans or state.spans[-1][0] != weight_version:
                state.spans.append((weight_version, len(state.tokens)))
            state.tokens += output.new_token_ids
            if output.new_logprobs is not None:
                state.logprobs_processor._update_sample_logprobs(output.new_logprobs)
            if output.finish_reason is not None:
                del self.request_states[output.request_id]

    def abort_requests(self, request_ids, internal):
        return [request_id for request_id in request_ids if self.request_states.pop(request_id, None) is not None]


def step_of(tokens, width):
    """The sampled token, then the tokens from 1 on, each less probable than the one before."""
    ids = np.array([[token, *range(1, width)] for token in tokens], np.int32)
    log_probs = np.tile(np.linspace(-1, -4, 30, dtype=np.float32)[: width - 1], (len(tokens), 1)) - 0.5
    own = np.array([[log_probs[0, token - 1]] if token < width else [-6.0] for token in tokens], np.float32)
    return Step(ids, np.concatenate([own, log_probs], axis=1), np.ones(len(tokens), np.int32))


class VllmPluginTest(fake_service.ServiceTest):
    def engine(self, run="r"):
        model = types.SimpleNamespace(logprobs_mode="processed_logprobs")
        engine = types.SimpleNamespace(
            model_config=model, speculative_config=None, output_processor=Processor(), shutdown=lambda: None
        )
        self.recorder = ServingRecorder(engine, sis.Client(self.address, timeout=5), run)
        self.addCleanup(self.recorder.shutdown)
        return engine

    def setUp(self):
        super().setUp()
        self.run_ = self.client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        for patch in (
            unittest.mock.patch.object(_vllm_plugin, "_INTERVAL", 0.05),
            # Its tests are of adapters.
            unittest.mock.patch("sis.engines.vllm.warn_unless_tested"),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def begin(self, engine, name, params=None, parent=None, index=0, internal=None):
        """Returns the request that the engine gets."""
        request = types.SimpleNamespace(
            request_id=internal or f"{name}-x", external_req_id=name, sampling_params=params or Params()
        )
        engine.output_processor.add_request(request, None, parent, index)
        return request

    def step(self, engine, request, tokens, version="0", ended=None, width=TOP_K + 1):
        log_probs = None if request.sampling_params.logprobs is None else step_of(tokens, width)
        output = types.SimpleNamespace(
            request_id=request.request_id, new_token_ids=list(tokens), new_logprobs=log_probs, finish_reason=ended
        )
        engine.output_processor.process_outputs([output], weight_version=version)

    def held(self, name):
        return self.service.sequences.get(("r", name, 0), fake_service.Sequence())


    def test_every_request_is_recorded_and_each_answer_has_what_was_asked_for(self):
        engine = self.engine()
        for asked, wanted in ((None, TOP_K), (0, TOP_K), (2, TOP_K), (TOP_K, TOP_K), (9, 9)):
            request = self.begin(engine, f"r{asked}", Params(asked))
            state = engine.output_processor.request_states[request.request_id]
            self.assertEqual(request.sampling_params.logprobs, wanted)
            # A step's arrays are as wide as any of its requests wants.
            for tokens, ended in (([3, 30], None), ([1], "stop")):
                self.step(engine, request, tokens, ended=ended, width=12)
            self.assertEqual(state.answered, [] if asked is None else [asked + 1] * 2)
            self.wait_for(lambda: self.held(f"r{asked}").sealed == 3)
            rows = [self.held(f"r{asked}").rows[position] for position in range(3)]
            self.assertEqual([np.frombuffer(row[0], np.int32)[0] for row in rows], [3, 30, 1])
            for row in rows:
                self.assertEqual(np.frombuffer(row[2], np.int32).tolist(), [1, 2, 3, 4])

    def test_an_aborted_request_stays_open_and_continues_under_its_name(self):
        engine = self.engine()
        request = self.begin(engine, "a", internal="a-1")
        self.step(engine, request, [3, 4])
        engine.output_processor.abort_requests(["a-1"], internal=True)
        self.wait_for(lambda: self.held("a").committed == 2)
        self.assertIsNone(self.held("a").sealed)
        request = self.begin(engine, "a", internal="a-2")
        self.step(engine, request, [5], "1", "stop")
        self.wait_for(lambda: self.held("a").sealed == 3)
        self.assertEqual(self.blocks("a"), [(0, 2, 0), (2, 1, 1)])
        # One that was aborted before its first token leaves nothing.
        self.begin(engine, "none", internal="none-1")
        engine.output_processor.abort_requests(["none-1"], internal=True)
        self.assertEqual(self.recorder._begun, {})

    def test_requests_that_draw_no_token_are_served_as_ever(self):
        engine = self.engine()
        for params in (Params(temperature=0.0), Params(-1), Params(3, temperature=0.0)):
            request = self.begin(engine, "g", params)
            self.assertIs(request.sampling_params, params)
            self.step(engine, request, [3], ended="stop")
        self.assertEqual(self.recorder._begun, {})

    def test_a_run_is_found_when_the_trainer_has_created_it_and_again_when_it_begins_again(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.client.delete_run("r")
            engine = self.engine()
            early = self.begin(engine, "early")
            self.assertIsNone(early.sampling_params.logprobs)
            self.client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
            for incarnation in (1, 2):
                if incarnation == 2:
                    self.client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, incarnation=2)
                name = f"s{incarnation}"

                def recorded(count=[0]):
                    count[0] += 1
                    request = self.begin(engine, f"{name}-{count[0]}")
                    self.step(engine, request, [3], ended="stop")
                    time.sleep(0.1)
                    return any(key[1].startswith(name) for key in self.service.sequences)

                self.wait_for(recorded)
        self.assertTrue(any("nothing is recorded until run r is found" in str(warning.message) for warning in caught))

    def test_serving_goes_on_without_the_server(self):
        engine = self.engine()
        self.server.stop(None).wait()
        request = self.begin(engine, "a")
        self.step(engine, request, [3], ended="stop")
        engine.shutdown = self.recorder.shutdown
        with unittest.mock.patch.object(_vllm_plugin, "_LAST_FLUSH", 0.2):
            engine.shutdown()

    def test_nothing_is_registered_without_an_address_and_a_run(self):
        for environment in ({}, {"SIS_ADDRESS": "a:1"}, {"SIS_RUN": "r"}):
            with unittest.mock.patch.dict(os.environ, environment, clear=True):
                _vllm_plugin.register()
        self.assertNotIn("vllm", sys.modules)


if __name__ == "__main__":
    unittest.main()
