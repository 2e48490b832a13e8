"""Two recordings of the same prompts, as lists of tokens over one vocabulary."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional

import numpy as np

from sis import _ragged
from sis.diagnose.lists import Lists
from sis.diagnose.recorded import RecordedFile

# Maximum sum of a list's probabilities, with a margin for rounding.
MAX_MASS = 1 + 2.0**-6


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

    def take(self, sequences: np.ndarray, counts: np.ndarray) -> Recording:
        """Returns the first `counts` positions of these sequences."""
        rows = _ragged.places(self.starts[sequences], counts)
        return dataclasses.replace(
            self,
            lengths=counts,
            sampled=self.sampled[rows],
            sampled_log_probs=self.sampled_log_probs[rows],
            given=self.given[rows],
            lists=self.lists.take(rows),
        )

    def log_probs_of(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Returns the log-probs of `ids` at `rows`, as listed or as sampled tokens; NaN where the engine gave none."""
        listed, own = self.lists.log_probs_of(rows, ids), self.sampled_log_probs[rows].astype(np.float64)
        return np.where(np.isnan(listed) & (self.sampled[rows] == ids) & np.isfinite(own), own, listed)


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
        ValueError: A list gives another token two log-probs, or its mass without the sampled token is above 1 + 1/64;
            the message names file, sequence and position. Tokens can't be matched. The numbers of sequences differ.
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
        number = -1 if token.id is None else token.id
        text = file.texts.get(number)
        if interned is not None:
            text = text if token.text is None else token.text
            number = interned.setdefault(text or "", len(interned))
        numbers.append(number)
        if text is not None:
            texts.setdefault(number, text)
    number_of = np.asarray(numbers, np.int64)
    sampled = number_of[file.sampled]
    written = Lists(file.counts, number_of[file.listed], file.log_probs)
    lists = _distinct(file, sampled, written, interned is not None)
    is_sampled = lists.ids == sampled[lists.rows]

    several = lists.counts > 1
    is_last = several & lists.last(is_sampled, False)
    stands_first = is_last & written.first(written.ids == sampled[written.rows], False)

    # The engine has put the sampled token into a list that belongs to another position.
    mass, others = lists.sums(lists.probs), lists.sums(np.where(is_sampled, 0.0, lists.probs))
    foreign = several & (others < mass) & (mass > MAX_MASS) & (others <= MAX_MASS)
    wrong = ~foreign & (mass > MAX_MASS)
    if wrong.any():
        position = int(wrong.argmax())
        raise ValueError(f"{_place(file, position)}: the probabilities of top_logprobs sum to {mass[position]:g}")
    kept = ~(foreign[lists.rows] & is_sampled)
    lists, is_sampled = lists.only(kept), is_sampled[kept]
    is_last &= ~foreign
    stands_first &= ~foreign

    is_longest = lists.counts == lists.counts.max(initial=0)
    one_shorter = lists.counts + 1 == lists.counts.max(initial=0)
    appended = stands_first | (is_longest & bool(is_last[is_longest].all() and one_shorter.any()))

    finite = np.isfinite(lists.log_probs)
    sampled_log_probs = file.sampled_log_probs.copy()
    own = finite & is_sampled
    sampled_log_probs[lists.rows[own]] = lists.log_probs[own]
    lists = lists.only(finite & ~(appended[lists.rows] & is_sampled))
    with_appended = int(lists.counts[appended].max(initial=0))
    top_k = with_appended if with_appended > 0 else int(lists.counts[~appended].max(initial=0))
    return Recording(file.lengths, sampled, sampled_log_probs, file.sampled_log_probs, lists, top_k, texts)


def _distinct(file: RecordedFile, sampled: np.ndarray, written: Lists, by_text: bool) -> Lists:
    """Keeps the most probable of equal ids in a list. Ids may be equal by text only."""
    order = np.lexsort((-written.log_probs, written.ids, written.rows))
    rows, ids, log_probs = written.rows[order], written.ids[order], written.log_probs[order]
    again = (rows[1:] == rows[:-1]) & (ids[1:] == ids[:-1])
    if not by_text:
        first = np.flatnonzero(again & (log_probs[1:] != log_probs[:-1]))
        # The list's own log-prob of the sampled token, and that which the engine has put there.
        own, given = ids[first] == sampled[rows[first]], file.sampled_log_probs[rows[first]]
        first_is_given, second_is_given = (own & (log_probs[at] == given) for at in (first, first + 1))
        for at in first[~(first_is_given | second_is_given)].tolist():
            raise ValueError(
                f"{_place(file, int(rows[at]))}: top_logprobs gives token {ids[at]} both {log_probs[at]:g} and "
                f"{log_probs[at + 1]:g}"
            )
        log_probs[first[first_is_given]] = log_probs[first[first_is_given] + 1]
    kept = np.flatnonzero(np.append(True, ~again)[: len(rows)])
    return Lists.ranked(len(written), rows[kept], ids[kept], log_probs[kept])


def _place(file: RecordedFile, position: int) -> str:
    ends = np.cumsum(file.lengths)
    sequence = int(np.searchsorted(ends, position, side="right"))
    return f"{file.name}: sequence {sequence}: position {position - int(ends[sequence] - file.lengths[sequence])}"
