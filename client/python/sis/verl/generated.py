"""What was generated of the rows of a batch of verl, and where its logits stand in a micro-batch."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

from sis.engines.lists import stretches

# In verl's data: which row of the batch a row of a micro-batch is.
_ROW = "sis_row"


class Generated(NamedTuple):
    """What one request of the rollout generated: a stretch of tokens that the mask has."""

    # Of the batch.
    row: int
    # Of the first generated token among all tokens of the row; above 0.
    start: int
    # int64 [start], int64 [T], float32 [T] (nats; NaN before they are known).
    context: np.ndarray
    sampled_ids: np.ndarray
    log_probs: np.ndarray


class Part(NamedTuple):
    """Of what is generated so much as a micro-batch's logits are of."""

    # Among all that is generated; within it; so many tokens.
    index: int
    first: int
    length: int
    # Of the logits those of its first token.
    place: int


def rows_of(parts: Sequence[Part], logits: torch.Tensor) -> torch.Tensor:
    """int64 [N], of the logits."""
    places = np.concatenate([np.arange(part.place, part.place + part.length) for part in parts])
    return torch.from_numpy(places).to(logits.device)


class Stretches:
    """Of a batch, on one rank."""

    def __init__(self, generated: List[Generated], alignment: int = 1) -> None:
        """alignment: each row's logits are padded to a multiple of it."""
        self.generated = generated
        self._alignment = alignment
        self._of_row: Dict[int, List[int]] = {}
        for index, part in enumerate(generated):
            self._of_row.setdefault(part.row, []).append(index)

    def parts(self, logits: torch.Tensor, data: Any) -> List[Part]:
        """logits: [n, V], of a micro-batch. With sequence parallelism each rank has n of all tokens, one after the
        other."""
        from verl.utils.ulysses import get_ulysses_sequence_parallel_rank

        begin = get_ulysses_sequence_parallel_rank() * len(logits)
        end = begin + len(logits)
        found = []
        for index, first in self.places(data):
            start, stop = max(first, begin), min(first + len(self.generated[index].sampled_ids), end)
            if start < stop:
                found.append(Part(index, start - first, stop - start, start - begin))
        return found

    def places(self, data: Any) -> Iterator[Tuple[int, int]]:
        """The stretches of a micro-batch, and where, among all of its tokens, the logits of their first stand: one
        before it."""
        begin = 0
        for row, length in zip(data[_ROW].tolist(), data["input_ids"].offsets().diff().tolist()):
            for index in self._of_row.get(row, ()):
                yield index, begin + self.generated[index].start - 1
            begin += -(-length // self._alignment) * self._alignment


@contextlib.contextmanager
def logits_shown(data: Any) -> Iterator[None]:
    """Meanwhile verl's engine calls the loss of these rows with their logits too."""
    from verl.utils import tensordict_utils

    unset = "distillation_use_topk" not in data
    tensordict_utils.assign_non_tensor(data, distillation_use_topk=True)
    data[_ROW] = torch.arange(len(data), device=data.device)
    try:
        yield
    finally:
        data.pop(_ROW)
        if unset:
            data.pop("distillation_use_topk")
        else:
            tensordict_utils.assign_non_tensor(data, distillation_use_topk=False)


def generated_in(data: Any, sampling: Optional[str]) -> List[Generated]:
    """The stretches of generated tokens of a batch, in the order of its rows, with data[sampling]. None: with
    none."""
    if sampling == "rollout_log_probs" and sampling not in data:
        raise ValueError("the batch has no rollout_log_probs: set actor_rollout_ref.rollout.calculate_log_probs=true")
    every = data["input_ids"]
    tokens, ends = every.values().cpu().numpy(), every.offsets().tolist()
    found = []
    masks = _rows(data["response_mask"])
    unknown = [np.full(len(mask), np.nan, np.float32) for mask in masks]
    values = unknown if sampling is None else _rows(data[sampling].float())
    for row, (mask, log_probs) in enumerate(zip(masks, values)):
        own = tokens[ends[row] : ends[row + 1]]
        length = _response_length(data, row)
        for first, last in stretches(mask[:length]):
            start = len(own) - length + first
            stop = start + last - first
            found.append(Generated(row, start, own[:start], own[start:stop], log_probs[first:last]))
    return found


def _response_length(data: Any, row: int) -> int:
    responses = data["responses"]
    if responses.is_nested:
        return int(responses.offsets()[row + 1] - responses.offsets()[row])
    return int(data["attention_mask"][row, data["prompts"].shape[1] :].sum())


def _rows(values: torch.Tensor) -> List[np.ndarray]:
    if values.is_nested:
        return [row.cpu().numpy() for row in values.unbind()]
    return list(values.cpu().numpy())
