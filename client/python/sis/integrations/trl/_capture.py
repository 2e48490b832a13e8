"""Captures the top-K log-probs of rollouts where a trainer generates them."""

from __future__ import annotations

import abc
import contextlib
import itertools
import math
from typing import Any, Callable, Iterator, List, Sequence

import numpy as np
import torch

from sis.engines import transformers as transformers_engine
from sis.engines._adapter import Columns, MalformedOutput, Piece
from sis.engines._lists import padded
from sis.engines._steps import Steps
from sis.engines.vllm import OpenAiAdapter, VllmAdapter, check_engine, of_the_sampled
from sis._run import Sampling
from sis._top_k import TopK


class Turn(abc.ABC):
    """The rollouts of one call of the engine, for several sequences.

    Attributes:
        sampling: How the log-probs were made; set when the call has returned.
    """

    sampling: Sampling

    @abc.abstractmethod
    def records(self, completions: Sequence[Sequence[int]]) -> List[TopK]:
        """Returns a record for each of this process's sequences, of its length."""


# Makes a block in which the engine is called once.
Capture = Callable[[], "contextlib.AbstractContextManager[Turn]"]


class _VllmTurn(Turn):
    def __init__(self, top_k: int, rank_in_group: int) -> None:
        self._top_k = top_k
        self._rank_in_group = rank_in_group
        self._outputs: List[Any] = []
        self._records: List[TopK] = []

    def take(self, adapter: VllmAdapter, outputs: Sequence[Any]) -> None:
        self.sampling = adapter.sampling
        completions = [output.outputs[0] for output in outputs]
        lengths = [len(completion.token_ids) for completion in completions]
        pieces = [Piece(completion, 0, length) for completion, length in zip(completions, lengths)]
        record = adapter.read(pieces, self._top_k).record
        # Also at positions that could not be read: a rollout is found again by its tokens.
        tokens = itertools.chain.from_iterable(completion.token_ids for completion in completions)
        record.sampled_ids[:] = np.fromiter(tokens, np.int32, sum(lengths))
        self._records += record.split(lengths)
        for completion in completions:
            # TRL sorts all log-probs by rank, one Python object each, and takes the most probable token's for the
            # sampled one's.
            completion.logprobs = of_the_sampled(completion.logprobs)

    def records(self, completions: Sequence[Sequence[int]]) -> List[TopK]:
        # With tensor parallelism each rank generates for all ranks of its group.
        first = self._rank_in_group * len(completions)
        return self._records[first : first + len(completions)]


def vllm(generation: Any, top_k: int, process_index: int) -> Capture:
    """Captures from TRL's colocated VLLMGeneration."""
    llm = generation.llm
    check_engine(llm)
    config = llm.llm_engine.model_config
    # vLLM's own limit, 20, protects its servers from their users.
    if config.max_logprobs != -1:
        config.max_logprobs = max(config.max_logprobs, top_k)
    rank_in_group = process_index % generation.tensor_parallel_size

    @contextlib.contextmanager
    def capture() -> Iterator[Turn]:
        turn = _VllmTurn(top_k, rank_in_group)
        generate = llm.generate

        def with_top_k(*arguments: Any, sampling_params: Any, **settings: Any) -> Any:
            sampling_params.logprobs = top_k
            sampling_params.flat_logprobs = True
            outputs = generate(*arguments, sampling_params=sampling_params, **settings)
            turn.take(VllmAdapter(llm, sampling_params), outputs)
            return outputs

        llm.generate = with_top_k
        try:
            yield turn
        finally:
            del llm.generate

    return capture


class _ServerTurn(Turn):
    """Reads the lists that TRL makes of an answer: per position the K tokens and the sampled one, most probable
    first."""

    def __init__(self, top_k: int, sampling: Sampling) -> None:
        self.sampling = sampling
        self._top_k = top_k
        self._columns: Any = None
        self._lengths: List[int] = []

    def take(self, completions: Sequence[Sequence[int]], log_probs: Sequence[Any], ids: Sequence[Any]) -> List[Any]:
        """Reads an answer.

        Returns:
            The log-probs of the sampled tokens as TRL takes them: [[[log-prob], ...], ...].

        Raises:
            MalformedOutput: The lists have different lengths.
        """
        self._lengths = [len(tokens) for tokens in completions]
        for row, (length, *lists) in enumerate(zip(self._lengths, log_probs, ids, strict=True)):
            for name, of_row in zip(("logprobs", "logprob_token_ids"), lists):
                if len(of_row) != length:
                    raise MalformedOutput(f"{name}[{row}]: {len(of_row)} positions, must be {length}")
            if list(map(len, lists[0])) != list(map(len, lists[1])):
                raise MalformedOutput(f"logprobs[{row}] and logprob_token_ids[{row}] list different numbers of tokens")
        positions = list(itertools.chain.from_iterable(ids))
        # One column more than requested: it is empty where the sampled token is among the K. TRL's server sends null
        # for NaN.
        listed = itertools.chain.from_iterable(log_probs)
        told = ([math.nan if value is None else value for value in values] for values in listed)
        tokens, values = padded(positions, told, list(map(len, positions)), self._top_k + 1)
        sampled = np.fromiter(itertools.chain.from_iterable(completions), np.int64, len(positions))
        is_sampled = tokens == sampled[:, None]
        own = values[np.arange(len(positions)), is_sampled.argmax(axis=1)]
        self._columns = Columns(tokens, values, sampled, own, "any")
        ends = np.cumsum(self._lengths)[:-1]
        return [part[:, None].tolist() for part in np.split(own, ends)]

    def records(self, completions: Sequence[Sequence[int]]) -> List[TopK]:
        return self._columns.record(self._top_k).split(self._lengths)


def vllm_server(generation: Any, top_k: int) -> Capture:
    """Captures from TRL's VLLMGeneration of a server, which passes the answers on to all processes."""

    @contextlib.contextmanager
    def capture() -> Iterator[Turn]:
        turn = _ServerTurn(top_k, _of_requests(generation))
        generate, listed = generation.generate, generation.logprobs

        def with_top_k(*arguments: Any, **settings: Any) -> Any:
            prompts, completions, log_probs, ids = generate(*arguments, **settings)
            return prompts, completions, turn.take(completions, log_probs, ids), None

        generation.generate, generation.logprobs = with_top_k, top_k
        try:
            yield turn
        finally:
            del generation.generate
            generation.logprobs = listed

    return capture


def _of_requests(generation: Any) -> Sampling:
    """Returns how TRL's VLLMGeneration samples, from a server that returns processed log-probs."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    asked = {**{name: getattr(generation, name) for name in names}, **generation.generation_kwargs}
    request = {
        **asked, "return_token_ids": True, "return_tokens_as_token_ids": True, "prompt": [], "logprobs": 1,
        "structured_outputs": generation.structured_outputs_regex or asked.get("structured_outputs"),
    }  # fmt: skip
    return OpenAiAdapter(request, "processed_logprobs").sampling


class _TransformersTurn(Turn):
    """The last of generate's logits processors: it sees the distribution that tokens are drawn from, one step of
    [B, vocabulary] at a time."""

    def __init__(self, top_k: int, sampling: Sampling) -> None:
        self.sampling = sampling
        self._top_k = top_k
        self._steps = Steps(top_k)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._steps:
            self._steps.draw(input_ids[:, -1])
        self._steps.add(scores)
        return scores

    def records(self, completions: Sequence[Sequence[int]]) -> List[TopK]:
        count = len(self._steps)
        if not count:
            return [TopK.void(0, self._top_k) for _ in completions]
        self._steps.draw(torch.tensor([tokens[count - 1] if len(tokens) == count else 0 for tokens in completions]))
        sequences = [np.asarray(tokens, np.int32) for tokens in completions]
        return [columns.record(self._top_k) for columns in self._steps.columns(sequences)]


def transformers(model: Any, generation_config: Any, top_k: int) -> Capture:
    """Captures from a model of transformers, without wrappers."""
    sampling = transformers_engine.sampling(generation_config)

    @contextlib.contextmanager
    def capture() -> Iterator[Turn]:
        turn = _TransformersTurn(top_k, sampling)
        make = model._get_logits_processor

        def with_turn(*arguments: Any, **settings: Any) -> Any:
            # Processors that generate is given come before temperature and filters.
            processors = make(*arguments, **settings)
            processors.append(turn)
            return processors

        model._get_logits_processor = with_turn
        try:
            yield turn
        finally:
            del model._get_logits_processor

    return capture
