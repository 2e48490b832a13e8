"""Two recordings of the same prompts, as lists of tokens over one vocabulary."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

import numpy as np

from sis.diagnose.lists import Lists, ranked, repeated
from sis.diagnose.recorded import RecordedFile

# Maximum sum of a list's probabilities, with a margin for rounding.
_MAX_MASS = 1 + 2.0**-6


@dataclass(frozen=True, eq=False)
class Recording:
    """S sequences of N positions in all."""

    # int64 [S].
    lengths: np.ndarray
    # int64 [N]. -1: none.
    sampled: np.ndarray
    # float32 [N], nats. From the listed token of the same id, if there is one; -inf if the engine gave none.
    sampled_log_probs: np.ndarray
    # float32 [N]. Log-prob outside of the list; -inf if the engine gives none.
    given: np.ndarray
    # All listed tokens without an appended sampled token. A record of the service holds 254 of them at most.
    lists: Lists
    # The number of most probable tokens that the engine was asked for, inferred from its lists.
    top_k: int
    # Texts of ids, as they first stand in the file.
    texts: Mapping[int, str]

    @property
    def starts(self) -> np.ndarray:
        """First position of each sequence, int64 [S]."""
        return np.cumsum(self.lengths) - self.lengths


@dataclass(frozen=True, eq=False)
class Pair:
    a: Recording
    b: Recording
    # True if the files' ids are compared, not their texts.
    by_id: bool


def shown(text: str) -> str:
    """Returns a text without what UTF-8 does not have: bytes that are parts of a character."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def pair_files(a: RecordedFile, b: RecordedFile) -> Pair:
    """Matches the tokens of two files: by id if both give all ids, otherwise by text, numbered by first appearance.

    If different tokens of a list have the same text, the most probable stays. Engines may list the sampled token in
    addition to the most probable ones. It then counts as appended, not as one of them, if it is the least probable of
    its list, and
    - it is first, out of order (as in vLLM), or
    - its list is one of the longest of the file, in all of which the sampled token is the least probable, and other
      lists are shorter by just one.
    An engine may have cut such lists to the requested length: top_k is then the length of lists without their appended
    token. A sampled token that contradicts its list is removed from it: the list's mass with that token is above
    1 + 1/64, or the list gives the token another log-prob.

    Raises:
        ValueError: Names file, sequence and position of a list that gives another token two log-probs, or whose mass is
            above 1 + 1/64 without the sampled one; or the files have no way in common to tell tokens apart, or another
            number of sequences.
    """
    if len(a.lengths) != len(b.lengths):
        raise ValueError(
            f"{a.name} holds {len(a.lengths)} sequences, {b.name} {len(b.lengths)}: both must hold those of the same "
            "prompts, in the same order"
        )
    by_id = a.has_ids and b.has_ids
    if not by_id and any(token.text is None and token.id not in file.texts for file in (a, b) for token in file.tokens):
        raise ValueError(f"{a.name} and {b.name}: tokens can't be matched: some have no id, others nothing but an id")
    interned: Optional[Dict[str, int]] = None if by_id else {}
    return Pair(_recording(a, interned), _recording(b, interned), by_id)


def _recording(file: RecordedFile, interned: Optional[Dict[str, int]]) -> Recording:
    """interned: numbers of texts, which grow; None: tokens are matched by id."""
    texts: Dict[int, str] = {}
    numbers: List[int] = []
    for token in file.tokens:
        text = token.text if token.text is not None else file.texts.get(-1 if token.id is None else token.id)
        if interned is None:
            number = -1 if token.id is None else token.id
            text = file.texts.get(number)
        else:
            number = interned.setdefault(text or "", len(interned))
        numbers.append(number)
        if text is not None:
            texts.setdefault(number, text)
    number_of = np.asarray(numbers, np.int64)
    sampled = number_of[file.sampled]
    rows, ids, log_probs = _distinct(file, sampled, number_of[file.listed], interned is not None)
    size = len(sampled)
    counts = np.bincount(rows, minlength=size)
    ends = np.cumsum(counts)
    is_sampled = ids == sampled[rows]

    # True if the sampled token is the last of its list.
    is_last = np.zeros(size, bool)
    several = counts > 1
    is_last[several] = ids[ends[several] - 1] == sampled[several]
    stands_first = np.zeros(size, bool)
    listing = file.counts > 0
    stands_first[listing] = number_of[file.listed[(np.cumsum(file.counts) - file.counts)[listing]]] == sampled[listing]
    stands_first &= is_last

    # The engine has put the sampled token into a list that belongs to another position.
    probs = np.exp(log_probs.astype(np.float64))
    mass = np.bincount(rows, probs, minlength=size)
    others = np.bincount(rows[~is_sampled], probs[~is_sampled], minlength=size)
    foreign = several & (others < mass) & (mass > _MAX_MASS) & (others <= _MAX_MASS)
    wrong = ~foreign & (mass > _MAX_MASS)
    if wrong.any():
        position = int(wrong.argmax())
        raise ValueError(f"{_place(file, position)}: the probabilities of top_logprobs sum to {mass[position]:g}")
    kept = ~(foreign[rows] & is_sampled)
    rows, ids, log_probs, is_sampled = rows[kept], ids[kept], log_probs[kept], is_sampled[kept]
    counts = np.bincount(rows, minlength=size)
    is_last &= ~foreign
    stands_first &= ~foreign

    longest = int(counts.max(initial=0))
    longest_have_appended = bool(is_last[counts == longest].all() and (counts + 1 == longest).any())
    appended = stands_first | (longest_have_appended & (counts == longest))

    finite = np.isfinite(log_probs)
    sampled_log_probs = file.sampled_log_probs.copy()
    own = finite & is_sampled
    sampled_log_probs[rows[own]] = log_probs[own]
    kept = finite & ~(appended[rows] & is_sampled)
    lists = Lists(np.bincount(rows[kept], minlength=size), ids[kept], log_probs[kept])
    with_appended = int(lists.counts[appended].max(initial=0))
    top_k = with_appended if with_appended > 0 else int(lists.counts[~appended].max(initial=0))
    return Recording(file.lengths, sampled, sampled_log_probs, file.sampled_log_probs, lists, top_k, texts)


def _distinct(
    file: RecordedFile, sampled: np.ndarray, ids: np.ndarray, by_text: bool
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rows, ids and log-probs of distinct tokens, most probable first, ties by id; -inf is allowed."""
    rows, log_probs = np.repeat(np.arange(len(sampled)), file.counts), file.log_probs
    if repeated(rows, ids):
        rows, ids, log_probs = _without_repetitions(file, sampled, rows, ids, by_text)
    order = ranked(rows, ids, log_probs)
    return rows[order], ids[order], log_probs[order]


def _without_repetitions(
    file: RecordedFile, sampled: np.ndarray, rows: np.ndarray, ids: np.ndarray, by_text: bool
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keeps the most probable of equal ids in a list. Ids may be equal by text only."""
    order = np.lexsort((-file.log_probs, ids, rows))
    rows, ids, log_probs = rows[order], ids[order], file.log_probs[order]
    again = (rows[1:] == rows[:-1]) & (ids[1:] == ids[:-1])
    if not by_text:
        # The list's own log-prob of the sampled token, and that which the engine has put there.
        for first in np.flatnonzero(again & (log_probs[1:] != log_probs[:-1])).tolist():
            second, row = first + 1, int(rows[first])
            given = file.sampled_log_probs[row]
            if log_probs[first] == log_probs[second]:
                continue
            if ids[first] == sampled[row] and log_probs[second] == given:
                log_probs[second] = log_probs[first]
            elif ids[first] == sampled[row] and log_probs[first] == given:
                log_probs[first] = log_probs[second]
            else:
                raise ValueError(
                    f"{_place(file, row)}: top_logprobs gives token {ids[first]} both {log_probs[first]:g} and "
                    f"{log_probs[second]:g}"
                )
    kept = np.concatenate([[True], ~again])
    return rows[kept], ids[kept], log_probs[kept]


def _place(file: RecordedFile, position: int) -> str:
    ends = np.cumsum(file.lengths)
    sequence = int(np.searchsorted(ends, position, side="right"))
    return f"{file.name}: sequence {sequence}: position {position - int(ends[sequence] - file.lengths[sequence])}"
