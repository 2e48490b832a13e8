"""Entries of append streams."""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

from sis._arrays import ArrayLike
from sis._records import MissingReason


class Block(NamedTuple):
    """Positions of one sequence: see AppendStream.block. `Block(name, 0, version, *record)` is of a
    sis.TopK.

    Attributes:
        sequence: Id of the sequence.
        first_position: Position of the first token.
        policy_version: Version of the weights that generated all positions.
        sampled_ids: int [T].
        sampled_log_probs: float32 [T], nats.
        top_k_ids: int [T, K], most probable first; -1 in unused slots.
        top_k_log_probs: float32 [T, K], nats; -inf in unused slots.
        attempt: Number of the attempt, from 0.
    """

    sequence: str
    first_position: int
    policy_version: int
    sampled_ids: ArrayLike
    sampled_log_probs: ArrayLike
    top_k_ids: ArrayLike
    top_k_log_probs: ArrayLike
    attempt: int = 0


class Gap(NamedTuple):
    """Positions without a usable log-prob: see AppendStream.gap.

    Attributes:
        sequence: Id of the sequence.
        first_position: First position without a usable log-prob.
        length: Number of positions.
        reason: Why they have no usable log-prob.
        attempt: Number of the attempt, from 0.
    """

    sequence: str
    first_position: int
    length: int
    reason: MissingReason = MissingReason.INVALID_LOG_PROB
    attempt: int = 0


class Annotation(NamedTuple):
    """Describes a sequence to people who look at it on the page or by
    InspectSequence. Texts of at most 64 KiB of UTF-8 each, `group` (of responses to one prompt) of
    256 bytes. Fields left out keep the values of an earlier seal.

    Attributes:
        prompt: The prompt, as text.
        text: The response, as text.
        group: Name of the group of responses to one prompt.
        reward: The reward; None: not known yet.
    """

    prompt: str = ""
    text: str = ""
    group: str = ""
    reward: Optional[float] = None


class Seal(NamedTuple):
    """See AppendStream.seal.

    Attributes:
        sequence: Id of the sequence.
        length: Length of the sequence, in positions.
        attempt: Number of the attempt, from 0.
        annotation: What the sequence is about.
    """

    sequence: str
    length: int
    attempt: int = 0
    annotation: Optional[Annotation] = None


AppendEntry = Union[Block, Gap, Seal]
