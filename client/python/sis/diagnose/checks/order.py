"""Are sequences, or only their log-probs, exchanged?"""

from __future__ import annotations

import math
from typing import Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from sis.diagnose.check import Check
from sis.diagnose.compared import equal_tokens
from sis.diagnose.moments import Moments
from sis.diagnose.recordings import Pair

# Number of first tokens that identify a sequence, and maximum number of sequences to try that share them.
_START = 8
_MOST_TRIED = 64


class _Swapped(NamedTuple):
    sequence: int
    # Sequence of B that fits.
    other: int
    values_only: bool


class _File:
    """Sampled tokens and their log-probs, by sequence."""

    def __init__(self, pair: Pair, name: str) -> None:
        recording = getattr(pair, name)
        ends = np.cumsum(recording.lengths)[:-1]
        self.tokens = np.split(recording.sampled, ends)
        self.log_probs = np.split(recording.given.astype(np.float64), ends)
        # Sequences by how they begin.
        self.by_start: Dict[Tuple[int, ...], List[int]] = {}

    def add(self, sequence: int) -> None:
        self.by_start.setdefault(_start_of(self.tokens[sequence]), []).append(sequence)

    def fitting(self, tokens: np.ndarray, but: int) -> Optional[int]:
        """Returns a sequence that goes on as `tokens` do, other than `but`: answers to one prompt may begin alike."""
        for sequence in self.by_start.get(_start_of(tokens), [])[:_MOST_TRIED]:
            if sequence == but:
                continue
            other = self.tokens[sequence]
            shorter = min(len(tokens), len(other))
            differ = np.flatnonzero(tokens[:shorter] != other[:shorter])
            equal = int(differ[0]) if len(differ) else shorter
            if equal * 2 >= shorter:
                return sequence
        return None


def _start_of(tokens: np.ndarray) -> Tuple[int, ...]:
    return tuple(tokens[:_START].tolist())


def check_order(pair: Pair) -> Check:
    check = Check(
        "order",
        "Do the files hold the sequences in the same order?",
        "sequences of A that another one of B fits, but not B's at their place",
        1,
        "to fit, half of the tokens must agree, or the log-probs four times better",
        "the order in which responses are collected: match them by their request's id, not by when they finish",
    )
    sequences = len(pair.a.lengths)
    if sequences < 2:
        return check.untested("there are not two sequences")
    a, b = _File(pair, "a"), _File(pair, "b")
    equal = equal_tokens(pair.a, pair.b)
    tokens_tell, swapped = _by_tokens(pair, a, b, equal)
    swapped += _by_values(a, b, equal)
    if not tokens_tell and not swapped:
        return check.untested("too many sequences part: each file seems to have its own samples")
    swapped.sort(key=lambda one: one.sequence)
    finding = ""
    if swapped:
        first = swapped[0]
        what, fits = ("The log-probs of sequence", "fit those of") if first.values_only else ("Sequence", "is")
        finding = (
            f"Sequences are in another order: {len(swapped)} of {sequences} of A are others in B. {what} "
            f"{first.sequence} of A {fits} sequence {first.other} of B."
        )
    check.decide(len(swapped), finding)
    if check.fault and len(swapped) < sequences:
        check.sequences = [one.sequence for one in swapped]
    return check


def _by_tokens(pair: Pair, a: _File, b: _File, equal: np.ndarray) -> Tuple[bool, List[_Swapped]]:
    """Returns sequences that part at once, where another one of B goes on as they do.

    None and False if that tells nothing, as at least as many others part: each file has its own samples then, and those
    of one prompt may be alike.
    """
    lengths = np.minimum(pair.a.lengths, pair.b.lengths)
    parted = np.flatnonzero((lengths >= _START) & (equal * 4 < lengths)).tolist()
    for sequence in range(len(lengths)):
        a.add(sequence)
    for sequence in parted:
        b.add(sequence)
    swapped = []
    for sequence in parted:
        tokens = a.tokens[sequence]
        other = b.fitting(tokens, sequence)
        if other is not None and a.fitting(tokens, sequence) is None:
            swapped.append(_Swapped(sequence, other, False))
    others = int((equal < lengths).sum()) - len(swapped)
    if len(swapped) > others or not swapped and not others * 2 > len(lengths):
        return True, swapped
    return False, []


def _by_values(a: _File, b: _File, equal: np.ndarray) -> List[_Swapped]:
    """Returns sequences with the right tokens, where the log-probs of another one of B fit."""
    least = 0.3  # nats
    differing: List[Tuple[int, float]] = []
    for sequence in np.flatnonzero(equal >= _START).tolist():
        difference = _difference(a.log_probs[sequence], b.log_probs[sequence])
        if difference >= least:
            differing.append((sequence, difference))
        if len(differing) == _MOST_TRIED:
            break
    swapped = []
    for sequence, own in differing:
        for other, _ in differing:
            if other != sequence and _difference(a.log_probs[sequence], b.log_probs[other]) < own / 4:
                swapped.append(_Swapped(sequence, other, True))
                break
    return swapped


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the mean difference of the log-probs that the files give sampled tokens; NaN if most have none."""
    shorter = min(len(a), len(b))
    with np.errstate(invalid="ignore"):
        differences = np.abs(a[:shorter] - b[:shorter])
    found = Moments.of(differences[np.isfinite(differences)])
    return found.mean if found.count >= _START and found.count * 2 >= shorter else math.nan
