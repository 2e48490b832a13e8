"""The rollouts of one process on the server: recorded, kept during the updates on them, released."""

from __future__ import annotations

import collections
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from sis import _entries
from sis.engines._adapter import entries_of
from sis.integrations._service import Service
from sis._records import Slice, TopKRecords
from sis._run import Sampling
from sis._top_k import TopK


class Block(NamedTuple):
    """Consecutive tokens that the policy generated."""

    first_position: int
    record: TopK


class Rollout(NamedTuple):
    """One response of `length` tokens. The policy generated `blocks`; tools wrote the other tokens."""

    length: int
    blocks: Sequence[Block]


class Generated(NamedTuple):
    """One sequence of one call of the engine."""

    prompt: Tuple[int, ...]
    record: TopK


def assembled(
    generated: Sequence[Generated],
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    tool_masks: Optional[Sequence[Sequence[int]]],
) -> List[Rollout]:
    """Assembles responses from the engine calls that generated them, one call per turn, whose prompts are the
    response's beginnings. A turn that was cut short counts up to there.

    Args:
        generated: Calls of the engine.
        prompts, completions: Token ids of each response.
        tool_masks: 0 where a tool wrote the token; None: tools wrote none.

    Raises:
        ValueError: No call generated a response.
    """
    by_prompt: Dict[Tuple[int, ...], List[TopK]] = collections.defaultdict(list)
    for call in generated:
        by_prompt[call.prompt].append(call.record)
    rollouts = []
    for row, (prompt, tokens) in enumerate(zip(prompts, completions)):
        mask = [1] * len(tokens) if tool_masks is None else tool_masks[row]
        blocks = []
        position = 0
        while position < len(tokens):
            if mask[position]:
                rest = np.asarray(tokens[position:], np.int32)
                record = _of_turn(by_prompt[(*prompt, *tokens[:position])], rest)
                blocks.append(Block(position, record))
                position += len(record.sampled_ids)
            else:
                position += 1
        rollouts.append(Rollout(len(tokens), blocks))
    return rollouts


def _of_turn(candidates: Sequence[TopK], tokens: np.ndarray) -> TopK:
    """Returns the record that begins as `tokens` do. If two do, they have the same context, and so the same rows."""
    for record in candidates:
        count = min(len(record.sampled_ids), len(tokens))
        if count and np.array_equal(record.sampled_ids[:count], tokens[:count]):
            return record.part(slice(count))
    raise ValueError(
        f"no rollout of the engine begins with token {tokens[0]}: it did not generate this response, and no rollout_func "
        "returned sis_records of it"
    )


class Rollouts:
    """The rollouts of this process's last generation. Positions that a server does not answer, because it is
    unreachable or full, are MISSING, and training continues.

    Attributes:
        policy_version: The policy version that generated them.
    """

    def __init__(self, service: Service, rank: int) -> None:
        self.policy_version = 0
        self._service = service
        self._rank = rank
        self._generation = 0
        # Names and lengths of all rollouts, in order. The server has none of length 0.
        self._names: List[str] = []
        self._lengths: List[int] = []
        self._records: Optional[TopKRecords] = None

    def record(self, rollouts: Sequence[Rollout], sampling: Sampling, policy_version: int) -> None:
        """Releases the rollouts before, and records these. All ranks have the same number."""
        self.release()
        # Decisions depend on names, so names must not depend on the number of ranks.
        first = self._rank * len(rollouts)
        self._names = [f"{self._generation}/{first + row}" for row in range(len(rollouts))]
        self._generation += 1
        self._lengths = [rollout.length for rollout in rollouts]
        self.policy_version = policy_version

        recorded: List[_entries.AppendEntry] = []
        for name, rollout in zip(self._names, rollouts):
            for block in rollout.blocks:
                recorded += entries_of(name, block.first_position, policy_version, block.record)
            if rollout.length:
                recorded.append(_entries.Seal(name, rollout.length))
        self._service.append(recorded, sampling, worker=f"rank-{self._rank}")

    def lengths(self, indices: Sequence[int]) -> List[int]:
        """Returns the lengths of rollouts, in positions, by their index in `record`."""
        return [self._lengths[index] for index in indices]

    def names(self, indices: Sequence[int]) -> List[str]:
        """Returns the names of rollouts by their index in `record`."""
        return [self._names[index] for index in indices]

    def records(self, indices: Sequence[int], log_probs: bool = False) -> Optional[TopKRecords]:
        """Returns whole sequences, without the empty ones; None if the server is unreachable.

        Args:
            indices: Indices of rollouts in `record`.
            log_probs: Whether to fetch log-probs too. The first call after `record` decides.
        """
        there = [index for index, length in enumerate(self._lengths) if length]
        if self._records is None:
            slices = [Slice(self._names[index], length=self._lengths[index]) for index in there]
            self._records = self._service.fetch(slices, log_probs=log_probs)
            if self._records is None:
                return None
        place = {index: number for number, index in enumerate(there)}
        return self._records.select([place[index] for index in indices if index in place])

    def release(self) -> None:
        """Lets the server drop all rollouts."""
        names = [name for name, length in zip(self._names, self._lengths) if length]
        self._names, self._lengths, self._records = [], [], None
        self._service.release(names)
