"""The rollouts of one process on the server: recorded, kept during the updates on them, released."""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence

from sis import _entries
from sis.integrations._service import Service
from sis.integrations.trl._sampled import entries_of_tokens
from sis._records import Slice, TopKRecords
from sis._run import Sampling


class Rollout(NamedTuple):
    """One response: whether the policy generated each token, or a tool, and the log-probs, Sampled ones of the
    policy's."""

    mask: Sequence[int]
    log_probs: Sequence[float]


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
        # All rollouts, in order. The server has none of length 0.
        self._slices: List[Slice] = []
        self._records: Optional[TopKRecords] = None

    def record(self, rollouts: Sequence[Rollout], sampling: Sampling, policy_version: int) -> None:
        """Releases the rollouts before, and records these. All ranks have the same number."""
        self.release()
        # Decisions depend on names, so names must not depend on the number of ranks.
        first = self._rank * len(rollouts)
        self._slices = [
            Slice(f"{self._generation}/{first + row}", length=len(rollout.mask)) for row, rollout in enumerate(rollouts)
        ]
        self._generation += 1
        self.policy_version = policy_version

        recorded: List[_entries.AppendEntry] = []
        for part, rollout in zip(self._slices, rollouts):
            if part.length:
                recorded += [*entries_of_tokens(part.sequence, *rollout), _entries.Seal(part.sequence, part.length)]
        self._service.append(recorded, sampling, worker=f"rank-{self._rank}")

    def slices(self, indices: Sequence[int]) -> List[Slice]:
        """Returns the names and lengths of rollouts by their index in `record`."""
        return [self._slices[index] for index in indices]

    def records(self, indices: Sequence[int], log_probs: bool = False) -> Optional[TopKRecords]:
        """Returns whole sequences, without the empty ones; None if the server is unreachable.

        Args:
            indices: Indices of rollouts in `record`.
            log_probs: Whether to fetch log-probs too. The first call after `record` decides.
        """
        there = [index for index, part in enumerate(self._slices) if part.length]
        if self._records is None:
            self._records = self._service.fetch(self.slices(there), log_probs=log_probs)
            if self._records is None:
                return None
        place = {index: number for number, index in enumerate(there)}
        return self._records.select([place[index] for index in indices if index in place])

    def release(self) -> None:
        """Lets the server drop all rollouts."""
        names = [part.sequence for part in self._slices if part.length]
        self._slices, self._records = [], None
        self._service.release(names)
