"""Log-probs of sampled tokens that carry their records: TRL cuts and joins them as it does the tokens."""

from __future__ import annotations

import itertools
import math
from typing import Any, Iterable, List, Optional, Sequence

import numpy as np

from sis import _entries
from sis.engines._adapter import entries_of
from sis.engines._lists import ranges_of
from sis._top_k import TopK


class Sampled(float):
    """The log-prob of a sampled token, in nats.

    Attributes:
        record: The record of the engine's answer, or of the part of it, that has the token.
        row: The token's row in it.
        policy_version: Version of the weights that drew it.
    """

    __slots__ = ("record", "row", "policy_version")

    record: TopK
    row: int
    policy_version: int

    def __new__(cls, log_prob: float, record: TopK, row: int, policy_version: int) -> Sampled:
        made = super().__new__(cls, log_prob)
        made.record, made.row, made.policy_version = record, row, policy_version
        return made


def sampled(record: TopK, policy_version: int, values: Optional[Sequence[Any]] = None) -> List[Sampled]:
    """Returns the log-probs of a record's sampled tokens, or `values` in their place, where None is NaN."""
    told = record.sampled_log_probs.tolist() if values is None else values
    return [
        Sampled(math.nan if value is None else value, record, row, policy_version) for row, value in enumerate(told)
    ]


def placed(mask: Sequence[int], log_probs: Iterable[float]) -> List[float]:
    """Returns the log-probs of a response whose generated tokens `mask` has, and 0 for the others."""
    rest = iter(log_probs)
    return [next(rest) if generated else 0.0 for generated in mask]


def entries_of_tokens(
    name: str, mask: Sequence[int], log_probs: Sequence[Any], begin: int = 0
) -> List[_entries.AppendEntry]:
    """Returns the entries of a sequence, without its seal.

    Args:
        name: Name of the sequence.
        mask: Whether the policy generated the token, for each one.
        log_probs: Of these tokens; Sampled where the policy generated them.
        begin: The token of position 0.

    Raises:
        ValueError: A generated token's log-prob has no record.
    """
    made: List[_entries.AppendEntry] = []
    for first, last in ranges_of(np.asarray(mask)):
        if not all(isinstance(log_prob, Sampled) for log_prob in log_probs[first:last]):
            raise ValueError(
                "log-probs of a response are not those of the engine, so it is not recorded: the engine did not "
                "generate it, and no rollout_func returned sis_records of it"
            )
        for _, answer in itertools.groupby(log_probs[first:last], lambda log_prob: id(log_prob.record)):
            tokens = list(answer)
            record, version = tokens[0].record, tokens[0].policy_version
            made += entries_of(name, first - begin, version, record.part([token.row for token in tokens]))
            first += len(tokens)
    return made
