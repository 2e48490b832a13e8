"""Why two recordings differ: all checks, in an order in which each may rely on those before it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from sis.diagnose.check import FAULT, UNTESTED, Check, Question
from sis.diagnose.checks.kinds import check_bias, check_filter, check_penalty, check_temperature
from sis.diagnose.checks.positions import (
    check_lists_shifted, check_sampled_column, check_sampled_shifted, check_tokens_shifted,
)  # fmt: skip
from sis.diagnose.checks.runs import check_ahead, check_coverage, check_staleness, check_zeros
from sis.diagnose.checks.sizes import check_outliers, check_range, check_uneven, check_weights
from sis.diagnose.checks.tokens import check_order, check_segmentation, check_token_numbers, check_token_texts
from sis.diagnose.compared import Compared
from sis.diagnose.difference import (
    DifferenceSize, LeftOut, Row, count_left_out, describe_left_out, measure, profile_of,
)  # fmt: skip

# Do positions correspond, are their log-probs of one kind, and how far are they apart? A fault makes the answers to the
# questions of later stages meaningless, for the reason given.
_STAGES: Tuple[Tuple[Tuple[Question, ...], str], ...] = (
    ((check_tokens_shifted, check_lists_shifted), "the positions do not correspond"),
    ((check_sampled_shifted,), "the log-probs do not correspond"),
    ((check_range,), "not all positions are of one kind"),
    (
        (check_sampled_column, check_filter, check_temperature, check_bias, check_penalty),
        "the log-probs are not of one kind",
    ),
    ((check_uneven,), "the differences are those of single sequences"),
    ((check_outliers,), "the differences are those of a few positions"),
    ((check_weights,), ""),
)
_SHIFTED = "the positions do not correspond"
# Only all sequences together can show that single tokens are moved.
_OF_TOKENS = ("bias", "penalty")
# Minimum length of a single sequence to check; chance looks like a fault in shorter ones.
_ENOUGH_ALONE = 16
_MAX_NAMED = 8


@dataclass(frozen=True)
class Diagnosis:
    fault: bool
    # None was found, but there is too little to say that there is none.
    undecided: bool
    # One paragraph for each fault; else what the differences are like. Then one about what is left out, if anything is.
    verdict: List[str]
    checks: List[Check]
    left_out: List[LeftOut]
    d: DifferenceSize
    profile: List[Row]

    @staticmethod
    def of_nothing(why: str) -> Diagnosis:
        return Diagnosis(False, True, [why], [], [], DifferenceSize(0, 0.0, 0.0, math.nan, ""), [])

    def as_json(self) -> Dict[str, Any]:
        """Returns all fields; numbers that are not there are NaN."""
        return dataclasses.asdict(self)


def diagnose(compared: Compared) -> Diagnosis:
    """Asks all questions about two files. Sequences with a fault that most sequences do not have are reported by
    themselves, and do not count for the others."""
    tokens = [check_token_texts(compared), check_token_numbers(compared), check_segmentation(compared)]
    order = check_order(compared, "the tokens do not correspond" if _faults(tokens) else "")
    if _faults(tokens) or order.fault and not order.sequences:
        others = _ask(compared, _SHIFTED)
    else:
        others = _ask_apart(_without(compared, order.sequences))
    checks = [*tokens, order, *others]
    return _concluded(compared, measure(compared), checks, count_left_out(compared), "No fault was found")


def diagnose_tokens(compared: Compared, left_out: List[LeftOut], filtered: str) -> Diagnosis:
    """Asks the same of tokens that a run has recorded, A, and evaluated, B: questions that only files have are left
    out, and others asked, of mass, age and padding.

    Args:
        filtered: The recorded sampling's filter, like "top_p 0.8", or empty. Differences that it explains are not
            blamed on anything else.
    """
    size, zeros, staleness = measure(compared), check_zeros(compared), check_staleness(compared)
    if zeros.fault:
        checks = _ask(compared, "some log-probs are padding")
    elif staleness.fault:
        checks = _ask(compared, "the differences are those of stale tokens")
    else:
        checks = _ask_apart(compared)
    # One reads the other's records: the tokens are the same.
    del checks[0]
    shifted = _faults(checks).keys() & {"lists_shifted", "sampled_shifted"}
    coverage = check_coverage(compared, _SHIFTED if shifted else "")
    checks = [zeros, *checks, check_ahead(compared), staleness, coverage]
    agree = not _faults(checks) and size.is_noise
    if filtered:
        _name_filter(filtered, checks, agree)
    # A run may be broken though its tokens are well.
    diagnosis = _concluded(compared, size, checks, left_out, "Of its tokens: no fault was found")
    if filtered and agree:
        diagnosis.verdict.insert(
            0,
            f"The records are renormalised over the tokens that a filter left ({filtered}), and the current policy "
            "agrees with them.",
        )
    return diagnosis


def _faults(checks: Sequence[Check]) -> Dict[str, Check]:
    return {check.name: check for check in checks if check.fault}


def _without(compared: Compared, sequences: Sequence[int]) -> Compared:
    return compared.only(np.setdiff1d(compared.numbers, np.asarray(sequences, np.int64)))


def _ask(compared: Compared, meaningless: str = "") -> List[Check]:
    """Asks the questions of all stages. meaningless: why none has a meaning; empty if they have."""
    checks: List[Check] = []
    for questions, reason in _STAGES:
        stage = [question(compared, meaningless) for question in questions]
        if _faults(stage):
            meaningless = reason
        checks += stage
    return checks


def _ask_apart(compared: Compared) -> List[Check]:
    """Asks about all sequences, those that differ from most by themselves."""
    together = _ask(compared)
    if len(compared.numbers) < 2 or next(iter(_faults(together)), "") in _OF_TOKENS:
        return together
    by_fault, tested = _faults_alone(compared)
    apart: Dict[str, Check] = {}
    for name, sequences in sorted(by_fault.items()):
        check = _faults(_ask(compared.only(np.asarray(sequences)))).get(name)
        if check is not None:
            check.sequences = sequences
            apart[name] = check
    odd = [sequence for check in apart.values() for sequence in check.sequences]
    if not odd or len(odd) * 2 > tested:
        return together
    checks = _ask(_without(compared, odd))
    # A fault that the others have too is no fault of single sequences.
    common = apart.keys() & _faults(checks).keys()
    if common:
        apart = {name: check for name, check in apart.items() if name not in common}
        checks = _ask(_without(compared, [sequence for check in apart.values() for sequence in check.sequences]))
    for check in apart.values():
        named = ", ".join(map(str, check.sequences[:_MAX_NAMED])) + ", ..." * (len(check.sequences) > _MAX_NAMED)
        count = f"{len(check.sequences)} of {len(compared.numbers)}"
        check.finding = f"In {count} sequences ({named}) alone: {check.finding}"
    return [apart.get(check.name, check) for check in checks]


def _faults_alone(compared: Compared) -> Tuple[Dict[str, List[int]], int]:
    """Returns the sequences that have a fault by themselves, by its name, and how many are long enough to tell."""
    shorter = np.minimum(compared.pair.a.lengths, compared.pair.b.lengths)
    by_fault: Dict[str, List[int]] = {}
    long_enough = compared.numbers[shorter >= _ENOUGH_ALONE].tolist()
    for sequence in long_enough:
        one = compared.only(np.asarray([sequence]))
        checks = _ask(one) if len(one) >= _ENOUGH_ALONE else [check_tokens_shifted(one)]
        fault = next(iter(_faults(checks)), "")
        if fault and fault not in _OF_TOKENS:
            by_fault.setdefault(fault, []).append(sequence)
    return by_fault, len(long_enough)


def _name_filter(filtered: str, checks: List[Check], agree: bool) -> None:
    """Puts the check of filters first, as a fault unless the policies agree. Then the last checks of all questions,
    which any difference of kinds looks like, are meaningless."""
    check = next(check for check in checks if check.name == "filter")
    checks.remove(check)
    checks.insert(0, check)
    if agree:
        return
    check.outcome = FAULT
    check.finding = (
        f"The records are renormalised over the tokens that a filter left ({filtered}): ratios mean something only if "
        "the current policy is renormalised over the same tokens."
    )
    for other in checks:
        if other.name in ("uneven", "outliers", "weights"):
            other.outcome, other.finding, other.sequences = UNTESTED, "the log-probs are not of one kind", []


def _concluded(
    compared: Compared, size: DifferenceSize, checks: List[Check], left_out: List[LeftOut], found: str
) -> Diagnosis:
    """Returns what follows from checks and size. found: the begin of the verdict if there is no fault."""
    verdict = [f"{check.finding} Look at {check.setting}." for check in checks if check.fault]
    fault = bool(verdict)
    if not fault:
        if len(compared) == 0:
            verdict.append("There is nothing to compare: no position is on both sides.")
        elif size.positions == 0:
            verdict.append("No check found a fault, but no position has a ratio.")
        elif not size.is_noise:
            verdict.append(f"Whether there is a fault can't be told. {size.meaning}")
        else:
            # A tenth of all and more.
            much = left_out and sum(part.positions for part in left_out) * 9 >= size.positions
            verdict.append(f"{found}{' in what can be compared' if much else ''}. {size.meaning}")
    if left_out:
        verdict.append(describe_left_out(left_out, size.positions))
    return Diagnosis(fault, not fault and not size.is_noise, verdict, checks, left_out, size, profile_of(compared))
