"""The generated tokens of a batch of verl, and the rows of their logits in a micro-batch."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

from sis.engines._lists import ranges_of

# Name, in verl's data, of the index in the batch of each row of a micro-batch.
_ROW = "sis_row"


class Generated(NamedTuple):
    """The T tokens of one request of the rollout: consecutive positions that the mask has.

    Attributes:
        row: Row of the batch.
        start: Index of the first of them among all tokens of the row; above 0.
        context: int64 [start], the tokens before.
        sampled_ids: int64 [T].
        log_probs: float32 [T], nats; NaN before they are known.
        advantages: float32 [T], or [0] if they are not needed.
    """

    row: int
    start: int
    context: np.ndarray
    sampled_ids: np.ndarray
    log_probs: np.ndarray
    advantages: np.ndarray


class Part(NamedTuple):
    """The tokens of a Generated that a micro-batch's logits predict.

    Attributes:
        generated: Index of the Generated.
        first: Index of the first of the tokens in it.
        length: Number of tokens.
        place: Row of the logits that predicts the first one.
    """

    generated: int
    first: int
    length: int
    place: int


def rows_of(parts: Sequence[Part], logits: torch.Tensor) -> torch.Tensor:
    """Returns the rows int64 [N] of the logits that predict the tokens of all parts."""
    places = np.concatenate([np.arange(part.place, part.place + part.length) for part in parts])
    return torch.from_numpy(places).to(logits.device)


class GeneratedTokens:
    """The generated tokens of a batch, on one rank."""

    def __init__(self, generated: List[Generated], alignment: int = 1) -> None:
        """alignment: each row's logits are padded to a multiple of this number."""
        self.generated = generated
        self._alignment = alignment
        self._of_row: Dict[int, List[int]] = {}
        for index, part in enumerate(generated):
            self._of_row.setdefault(part.row, []).append(index)

    def parts(self, logits: torch.Tensor, data: Any) -> List[Part]:
        """Returns the parts that a micro-batch's logits [n, V] predict. With sequence parallelism each rank has n
        consecutive rows."""
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
        """Yields the index of each Generated of a micro-batch, and the row, among all of its tokens, whose logits
        predict its first token: the one before it."""
        begin = 0
        for row, length in zip(data[_ROW].tolist(), data["input_ids"].offsets().diff().tolist()):
            for index in self._of_row.get(row, ()):
                yield index, begin + self.generated[index].start - 1
            begin += -(-length // self._alignment) * self._alignment


@contextlib.contextmanager
def logits_shown(data: Any) -> Iterator[None]:
    """Within the block verl's engine calls the loss of these rows with their logits too."""
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


def generated_in(data: Any, sampling: Optional[str], advantages: bool = False) -> List[Generated]:
    """Returns the generated tokens of a batch, in the order of its rows.

    Args:
        data: verl's batch.
        sampling: Name of the log-probs in it; None: log-probs are unknown.
        advantages: Whether to read advantages too.

    Raises:
        ValueError: The batch has no rollout_log_probs.
    """
    if sampling == "rollout_log_probs" and sampling not in data:
        raise ValueError("the batch has no rollout_log_probs: set actor_rollout_ref.rollout.calculate_log_probs=true")
    every = data["input_ids"]
    tokens, ends = every.values().cpu().numpy(), every.offsets().tolist()
    found = []
    masks = _rows(data["response_mask"])
    unknown = [np.full(len(mask), np.nan, np.float32) for mask in masks]
    values = unknown if sampling is None else _rows(data[sampling].float())
    weighed = _rows(data["advantages"].float()) if advantages else [np.empty(0, np.float32)] * len(masks)
    for row, (mask, log_probs, of_row) in enumerate(zip(masks, values, weighed)):
        own = tokens[ends[row] : ends[row + 1]]
        length = _response_length(data, row)
        for first, last in ranges_of(mask[:length]):
            start = len(own) - length + first
            stop = start + last - first
            found.append(Generated(row, start, own[:start], own[start:stop], log_probs[first:last], of_row[first:last]))
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
