"""Do the files hold the same tokens, in the same order?"""

from __future__ import annotations

import math
from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from sis import _ragged
from sis.diagnose.check import AT_MOST, Check, Moments
from sis.diagnose.compared import equal_tokens
from sis.diagnose.lists import Lists
from sis.diagnose.recordings import Pair, Recording, shown

# A tokenizer's own letters for what can't be seen, which some engines decode and others don't.
_LETTERS = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n", "\ufffd": ""})


def check_token_texts(pair: Pair) -> Check:
    """An id stands for another text in the other file."""
    enough = 10
    check = Check(
        "token_texts",
        "Do ids stand for the same texts?",
        "share of ids with a text in both files whose texts differ",
        0.2,
        "with one tokenizer only the spelling of single tokens differs",
        "the tokenizer of both sides: its name, its revision, tokens that were added",
    )
    both = different = 0
    example = ""
    for token, text in pair.a.texts.items():
        other = pair.b.texts.get(token)
        if other is None:
            continue
        a, b = text.translate(_LETTERS), other.translate(_LETTERS)
        # A part of a character is spelled by engines as they like.
        if not a or not b:
            continue
        both += 1
        if a == b:
            continue
        different += 1
        example = example or f'; {token} is "{shown(a)}" and "{shown(b)}"'
    if not pair.by_id or both < enough:
        return check.untested("too few tokens have an id and a text in both files")
    return check.decide(different / both, f"The tokenizers differ: the same ids stand for other texts{example}.")


def check_token_numbers(pair: Pair) -> Check:
    """The same probabilities, position for position, stand under other ids."""
    enough = 5
    check = Check(
        "token_numbers",
        "Are tokens numbered alike?",
        "log-probs by rank, where the ids have nothing in common: their mean difference at the same position over that "
        "at neighbours",
        0.5,
        "it is near 1 for unrelated positions, and below 0.2 for the same model",
        "the tokenizer of both sides: its revision, tokens that were added before others",
        AT_MOST,
    )
    a, b = pair.a.lists, pair.b.lists
    counts = np.minimum(pair.a.lengths, pair.b.lengths)
    here, there = _ragged.places(pair.a.starts, counts), _ragged.places(pair.b.starts, counts)
    is_last = _ragged.places(np.ones(len(counts), np.int64), counts) == np.repeat(pair.b.lengths, counts)
    listed = (a.counts[here] > 0) & (b.counts[there] > 0)
    here, there, is_last = here[listed], there[listed], is_last[listed]
    followed = np.flatnonzero(~is_last)
    followed = followed[b.counts[there[followed] + 1] > 0]
    if not pair.by_id or len(here) < enough or len(followed) < enough:
        return check.untested("too few positions have lists with ids in both files")
    part_a, part_b = a.take(here), b.take(there)
    shared = np.minimum(part_a.probs, part_b.probs_at(part_b.find(part_a.rows, part_a.ids)))
    mass = (part_a.probs.sum() + part_b.probs.sum()) / 2
    # Lists without a token in common vary by all that they hold: half of sum(p) + sum(q) - 2 sum(min(p, q)).
    variation = mass - shared.sum()
    same = _profile_distances(part_a, part_b)
    neighbour = _profile_distances(a.take(here[followed]), b.take(there[followed] + 1))
    if variation < 0.9 * mass or neighbour.sum() == 0:
        return check.clear()
    offsets = Counter((part_b.ids[part_b.starts] - part_a.ids[part_a.starts]).tolist())
    offset, count = offsets.most_common(1)[0]
    common = f": those of B are {offset:+d}" if count * 10 >= len(here) * 9 else ""
    return check.decide(
        same.mean() / neighbour.mean(),
        f"The vocabularies are numbered differently: the same probabilities stand under other ids{common}.",
    )


def _profile_distances(a: Lists, b: Lists) -> np.ndarray:
    """Means of |a - b| over the ranks that both lists have, of at most five: whatever the ids are."""
    ranks = np.minimum(np.minimum(a.counts, b.counts), 5)
    sums = np.zeros(len(a))
    for rank in range(5):
        there = np.flatnonzero(ranks > rank)
        difference = a.log_probs[a.starts[there] + rank].astype(np.float64) - b.log_probs[b.starts[there] + rank]
        sums[there] += np.abs(difference)
    return sums / np.maximum(1, ranks)


def check_segmentation(pair: Pair) -> Check:
    """The same text is cut into other tokens."""
    # Characters of text that chance does not make equal.
    long_enough = 16
    check = Check(
        "segmentation",
        "Is the text cut into the same tokens?",
        "of the sequences whose tokens part, the share whose text goes on alike",
        0.5,
        "a tokenizer cuts a text in one way; engines that sample other tokens soon write another text",
        "the tokenizer; send ids of tokens to the trainer, never text",
    )
    parted = alike = 0
    example = ""
    for i in range(len(pair.a.lengths)):
        a, b = _sampled_texts(pair.a, i), _sampled_texts(pair.b, i)
        first = next((at for at, (text, other) in enumerate(zip(a, b)) if text != other), None)
        if first is None:
            continue
        rest_a, rest_b = "".join(a[first:]), "".join(b[first:])
        if min(len(rest_a), len(rest_b)) < long_enough:
            continue
        parted += 1
        if rest_a[:long_enough] != rest_b[:long_enough]:
            continue
        alike += 1
        example = example or (
            f'; in sequence {i} at position {first} "{shown(a[first])}" and "{shown(b[first])}" begin the same text'
        )
    if parted == 0:
        return check.untested("no two texts part")
    return check.decide(alike / parted, f"The tokenizers differ: they cut the same text differently{example}.")


def _sampled_texts(recording: Recording, sequence: int) -> List[str]:
    """Returns the texts of a sequence's tokens, up to the first token whose text the file does not have."""
    texts = []
    start = int(recording.starts[sequence])
    for token in recording.sampled[start : start + int(recording.lengths[sequence])].tolist():
        text = recording.texts.get(token)
        if text is None:
            break
        texts.append(text.translate(_LETTERS))
    return texts


# Number of first tokens that identify a sequence, and maximum number of sequences to try that share them.
_START = 8
_MAX_TRIED = 64


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
        for sequence in self.by_start.get(_start_of(tokens), [])[:_MAX_TRIED]:
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
        if len(differing) == _MAX_TRIED:
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
    return found.mean if found.number >= _START and found.number * 2 >= shorter else math.nan
