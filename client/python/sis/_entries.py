"""Entries of append streams."""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

from sis._arrays import ArrayLike
from sis._records import MissingReason


class Block(NamedTuple):
    """Positions of one sequence: see AppendStream.block. `Block(name, 0, version, *record)` is of a
    sis.TopK."""

    sequence: str
    first_position: int
    policy_version: int
    sampled_ids: ArrayLike
    sampled_log_probs: ArrayLike
    top_k_ids: ArrayLike
    top_k_log_probs: ArrayLike
    attempt: int = 0


class Gap(NamedTuple):
    """Positions without a usable log-prob: see AppendStream.gap."""

    sequence: str
    first_position: int
    length: int
    reason: MissingReason = MissingReason.INVALID_LOG_PROB
    attempt: int = 0


class Annotation(NamedTuple):
    """Describes a sequence to people who look at it on the page or by
    InspectSequence. Texts of at most 64 KiB of UTF-8 each, `group` (of responses to one prompt) of
    256 bytes. Fields left out keep the values of an earlier seal."""

    prompt: str = ""
    text: str = ""
    group: str = ""
    reward: Optional[float] = None


class Seal(NamedTuple):
    """See AppendStream.seal."""

    sequence: str
    length: int
    attempt: int = 0
    annotation: Optional[Annotation] = None


AppendEntry = Union[Block, Gap, Seal]
