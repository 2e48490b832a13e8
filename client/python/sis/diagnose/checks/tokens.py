"""Do the files hold the same tokens, in the same order?"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Dict, Iterable, List, Optional

import numpy as np

from sis import _ragged
from sis.diagnose.check import AT_MOST, Answer, Measured, Moments, question
from sis.diagnose.compared import Compared, equal_tokens
from sis.diagnose.lists import Lists
from sis.diagnose.recordings import Recording, shown

# A tokenizer's own letters for what can't be seen, which some engines decode and others don't.
_LETTERS = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n", "\ufffd": ""})


# With one tokenizer only the spelling of single tokens differs.
@question(
    "Do ids stand for the same texts?",
    "share of ids with a text in both files whose texts differ",
    0.2,
    "the tokenizer of both sides: its name, its revision, tokens that were added",
)
def check_token_texts(compared: Compared) -> Answer:
    """An id stands for another text in the other file."""
    enough, pair = 10, compared.pair
    a, b = ({token: text.translate(_LETTERS) for token, text in file.texts.items()} for file in (pair.a, pair.b))
    # A part of a character, which may be left without a letter, is spelled by engines as they like.
    both = [token for token, text in a.items() if text and b.get(token)]
    if not pair.by_id or len(both) < enough:
        return "too few tokens have an id and a text in both files"
    different = [token for token in both if a[token] != b[token]]
    example = "".join(f'; {token} is "{shown(a[token])}" and "{shown(b[token])}"' for token in different[:1])
    finding = f"The tokenizers differ: the same ids stand for other texts{example}."
    return Measured(len(different) / len(both), finding)


# It is near 1 for unrelated positions, and below 0.2 for the same model.
@question(
    "Are tokens numbered alike?",
    "log-probs by rank, where the ids have nothing in common: their mean difference at the same position over that at "
    "neighbours",
    0.5,
    "the tokenizer of both sides: its revision, tokens that were added before others",
    AT_MOST,
)
def check_token_numbers(compared: Compared) -> Answer:
    """The same probabilities, position for position, stand under other ids."""
    enough, pair = 5, compared.pair
    a, b = pair.a.lists, pair.b.lists
    counts = np.minimum(pair.a.lengths, pair.b.lengths)
    here, there = _ragged.places(pair.a.starts, counts), _ragged.places(pair.b.starts, counts)
    left = np.repeat(pair.b.starts + pair.b.lengths, counts) - there
    listed = (a.counts[here] > 0) & (b.counts[there] > 0)
    here, there, left = here[listed], there[listed], left[listed]
    followed = np.flatnonzero(left > 1)
    followed = followed[b.counts[there[followed] + 1] > 0]
    if not pair.by_id or len(here) < enough or len(followed) < enough:
        return "too few positions have lists with ids in both files"
    of_a, of_b = a.take(here), b.take(there)
    shared = np.minimum(of_a.probs, of_b.probs_of(of_a.rows, of_a.ids)).sum()
    neighbour = _rank_distances(a.take(here[followed]), b.take(there[followed] + 1))
    # Most tokens that are listed are listed by both.
    if shared > 0.1 * (of_a.probs.sum() + of_b.probs.sum()) / 2 or neighbour.sum() == 0:
        return None
    offsets = of_b.ids[of_b.starts] - of_a.ids[of_a.starts]
    offset, count = Counter(offsets.tolist()).most_common(1)[0]
    common = f": those of B are {offset:+d}" if count * 10 >= len(here) * 9 else ""
    return Measured(
        float(_rank_distances(of_a, of_b).mean() / neighbour.mean()),
        f"The vocabularies are numbered differently: the same probabilities stand under other ids{common}.",
    )


def _rank_distances(a: Lists, b: Lists) -> np.ndarray:
    """Means of abs(a - b) over the ranks that both lists have, of at most five: whatever the ids are."""
    ranks = np.minimum(np.minimum(a.counts, b.counts), 5)
    a_at, b_at = _ragged.places(a.starts, ranks), _ragged.places(b.starts, ranks)
    differences = np.abs(a.log_probs[a_at].astype(np.float64) - b.log_probs[b_at])
    return np.bincount(np.repeat(np.arange(len(a)), ranks), differences, minlength=len(a)) / np.maximum(1, ranks)


# A tokenizer cuts a text in one way; engines that sample other tokens soon write another text.
@question(
    "Is the text cut into the same tokens?",
    "of the sequences whose tokens part, the share whose text goes on alike",
    0.5,
    "the tokenizer; send ids of tokens to the trainer, never text",
)
def check_segmentation(compared: Compared) -> Answer:
    """The same text is cut into other tokens."""
    # Characters of text that chance does not make equal.
    long_enough = 16
    parted, examples = 0, []
    for sequence, (a, b) in enumerate(zip(_sampled_texts(compared.pair.a), _sampled_texts(compared.pair.b))):
        first = next((at for at, (text, other) in enumerate(zip(a, b)) if text != other), None)
        if first is None:
            continue
        rest_a, rest_b = "".join(a[first:]), "".join(b[first:])
        if min(len(rest_a), len(rest_b)) < long_enough:
            continue
        parted += 1
        if rest_a[:long_enough] == rest_b[:long_enough]:
            texts = f'"{shown(a[first])}" and "{shown(b[first])}"'
            examples.append(f"; in sequence {sequence} at position {first} {texts} begin the same text")
    if parted == 0:
        return "no two texts part"
    finding = f"The tokenizers differ: they cut the same text differently{''.join(examples[:1])}."
    return Measured(len(examples) / parted, finding)


def _sampled_texts(recording: Recording) -> Iterable[List[str]]:
    """Yields the texts of each sequence's tokens, up to the first token whose text the file does not have."""
    for tokens in np.split(recording.sampled, recording.starts[1:]):
        texts = []
        for token in tokens.tolist():
            text = recording.texts.get(token)
            if text is None:
                break
            texts.append(text.translate(_LETTERS))
        yield texts


# Number of first tokens that identify a sequence, and maximum number of sequences to try that share them.
_START = 8
_MAX_TRIED = 64


# To fit, half of the tokens must agree, or the log-probs four times better.
@question(
    "Do the files hold the sequences in the same order?",
    "sequences of A that another one of B fits, but not B's at their place",
    1,
    "the order in which responses are collected: match them by their request's id, not by when they finish",
)
def check_order(compared: Compared) -> Answer:
    pair = compared.pair
    sequences = len(pair.a.lengths)
    if sequences < 2:
        return "there are not two sequences"
    lengths, equal = np.minimum(pair.a.lengths, pair.b.lengths), equal_tokens(pair)
    by_tokens = _swapped_tokens(pair.a, pair.b, np.flatnonzero((lengths >= _START) & (equal * 4 < lengths)))
    # If as many others part, each file has its own samples, and those of one prompt may be alike.
    others = int((equal < lengths).sum()) - len(by_tokens)
    own_samples = others >= len(by_tokens) if by_tokens else others * 2 > sequences
    if own_samples:
        by_tokens = {}
    swapped = {**_swapped_values(pair.a, pair.b, np.flatnonzero(equal >= _START)), **by_tokens}
    if not swapped:
        return "too many sequences part: each file seems to have its own samples" if own_samples else Measured(0, "")
    first = min(swapped)
    what, fits = ("Sequence", "is") if first in by_tokens else ("The log-probs of sequence", "fit those of")
    return Measured(
        len(swapped),
        f"Sequences are in another order: {len(swapped)} of {sequences} of A are others in B. {what} {first} of A "
        f"{fits} sequence {swapped[first]} of B.",
        sorted(swapped) if len(swapped) < sequences else [],
    )


def _swapped_tokens(a: Recording, b: Recording, parted: np.ndarray) -> Dict[int, int]:
    """Returns those of the sequences, which part at once, where another one of these in B goes on as they do, and
    which. None in A must: answers to one prompt may begin alike."""
    a_tokens, b_tokens = np.split(a.sampled, a.starts[1:]), np.split(b.sampled, b.starts[1:])
    in_a, in_b = _by_start(a_tokens, range(len(a_tokens))), _by_start(b_tokens, parted.tolist())
    swapped = {}
    for sequence in parted.tolist():
        tokens = a_tokens[sequence]
        start = tokens[:_START].tobytes()
        other = _fitting(tokens, b_tokens, in_b[start], sequence)
        if other is not None and _fitting(tokens, a_tokens, in_a[start], sequence) is None:
            swapped[sequence] = other
    return swapped


def _by_start(tokens: List[np.ndarray], sequences: Iterable[int]) -> Dict[bytes, List[int]]:
    starts: Dict[bytes, List[int]] = defaultdict(list)
    for sequence in sequences:
        starts[tokens[sequence][:_START].tobytes()].append(sequence)
    return starts


def _fitting(tokens: np.ndarray, others: List[np.ndarray], sequences: List[int], but: int) -> Optional[int]:
    """Returns the first of the sequences, other than `but`, half of whose tokens are `tokens`."""
    for sequence in sequences[:_MAX_TRIED]:
        shorter = min(len(tokens), len(others[sequence]))
        differ = np.flatnonzero(tokens[:shorter] != others[sequence][:shorter])
        if sequence != but and (len(differ) == 0 or differ[0] * 2 >= shorter):
            return sequence
    return None


def _swapped_values(a: Recording, b: Recording, sequences: np.ndarray) -> Dict[int, int]:
    """Returns those of the sequences, which have the right tokens, where the log-probs of another one of B fit, and
    which."""
    least = 0.3  # nats
    a_values, b_values = np.split(a.given, a.starts[1:]), np.split(b.given, b.starts[1:])
    differing: Dict[int, float] = {}
    for sequence in sequences.tolist():
        difference = _difference(a_values[sequence], b_values[sequence])
        if difference >= least and len(differing) < _MAX_TRIED:
            differing[sequence] = difference
    fitting = {
        sequence: [
            other for other in differing
            if other != sequence and _difference(a_values[sequence], b_values[other]) < own / 4
        ]
        for sequence, own in differing.items()
    }  # fmt: skip
    return {sequence: others[0] for sequence, others in fitting.items() if others}


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the mean difference of the log-probs that the files give sampled tokens; NaN if most have none."""
    shorter = min(len(a), len(b))
    with np.errstate(invalid="ignore"):
        differences = np.abs(a[:shorter].astype(np.float64) - b[:shorter])
    found = Moments.of(differences[np.isfinite(differences)])
    return found.mean if found.number >= _START and found.number * 2 >= shorter else math.nan
