"""Why two recordings differ: all checks, in an order in which each may rely on those before it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from sis.diagnose.check import FAULT, Check
from sis.diagnose.checks.kinds import check_bias, check_filter, check_penalty, check_temperature
from sis.diagnose.checks.positions import (
    check_lists_shifted, check_sampled_column, check_sampled_shifted, check_tokens_shifted,
)  # fmt: skip
from sis.diagnose.checks.runs import check_ahead, check_coverage, check_staleness, check_zeros
from sis.diagnose.checks.sizes import check_outliers, check_range, check_uneven, check_weights
from sis.diagnose.checks.tokens import check_order, check_segmentation, check_token_numbers, check_token_texts
from sis.diagnose.compared import Compared, Part
from sis.diagnose.difference import (
    DifferenceSize, LeftOut, Profile, count_left_out, describe_left_out, measure, profile_of,
)  # fmt: skip

# Minimum length of a single sequence to check; chance looks like a fault in shorter ones.
_ENOUGH_ALONE = 16
_MAX_NAMED = 8


@dataclass
class Diagnosis:
    d: DifferenceSize
    profile: Profile
    left_out: List[LeftOut]
    checks: List[Check] = field(default_factory=list)
    fault: bool = False
    # None was found, but there is too little to say that there is none.
    undecided: bool = False
    # One paragraph for each fault; else what the differences are like. Then one about what is left out, if anything is.
    verdict: List[str] = field(default_factory=list)

    @staticmethod
    def of_nothing(why: str) -> Diagnosis:
        size = DifferenceSize(0, 0.0, 0.0, math.nan, "", "")
        return Diagnosis(size, Profile((), ()), [], undecided=True, verdict=[why])

    def as_json(self) -> Dict[str, Any]:
        """Returns all fields, the answer first; numbers that are not there are NaN."""
        made = dataclasses.asdict(self)
        return {name: made[name] for name in ("fault", "undecided", "verdict", "checks", "left_out", "d", "profile")}


def diagnose(compared: Compared) -> Diagnosis:
    """Asks all questions about two files. Sequences with a fault that most sequences do not have are reported by
    themselves, and do not count for the others."""
    pair, whole = compared.pair, Part.whole(compared)
    diagnosis = Diagnosis(measure(whole), profile_of(whole), count_left_out(compared))
    checks = [check_token_texts(pair), check_token_numbers(pair), check_segmentation(pair)]
    same_tokens = not _any_fault(checks)
    order = check_order(pair)
    if not same_tokens:
        order.untested("the tokens do not correspond")
    all_elsewhere = order.fault and not order.sequences
    if same_tokens and not all_elsewhere:
        others = _ask_apart(whole.without(order.sequences))
    else:
        others = _ask(whole)
        _dismiss(others, "the positions do not correspond")
    diagnosis.checks = [*checks, order, *others]
    _conclude(len(compared), False, diagnosis)
    return diagnosis


def diagnose_tokens(compared: Compared, left_out: List[LeftOut], filtered: str) -> Diagnosis:
    """Asks the same of tokens that a run has recorded, A, and evaluated, B: questions that only files have are left
    out, and others asked, of mass, age and padding.

    Args:
        filtered: The recorded sampling's filter, like "top_p 0.8", or empty. Differences that it explains are not
            blamed on anything else.
    """
    whole = Part.whole(compared)
    diagnosis = Diagnosis(measure(whole), profile_of(whole), left_out)
    # One reads the other's records: the tokens are the same, in the same order.
    checks = _ask_apart(whole)[1:]
    zeros, staleness, coverage = check_zeros(compared), check_staleness(compared), check_coverage(compared)
    first = _first_fault(checks)
    if zeros.fault:
        _dismiss(checks, "some log-probs are padding")
    elif staleness.fault:
        _dismiss(checks, "the differences are those of stale tokens")
    elif first is not None and first.name in ("lists_shifted", "sampled_shifted"):
        coverage.untested("the positions do not correspond")
    diagnosis.checks = [zeros, *checks, check_ahead(compared), staleness, coverage]
    if filtered:
        _name_filter(filtered, diagnosis)
    _conclude(len(compared), True, diagnosis)
    if filtered and not diagnosis.checks[0].fault:
        diagnosis.verdict.insert(
            0,
            f"The records are renormalised over the tokens that a filter left ({filtered}), and the current policy "
            "agrees with them.",
        )
    return diagnosis


def _first_fault(checks: Sequence[Check]) -> Optional[Check]:
    return next((check for check in checks if check.fault), None)


def _any_fault(checks: Sequence[Check]) -> bool:
    return _first_fault(checks) is not None


def _dismiss(checks: Sequence[Check], why: str) -> None:
    """Replaces what a check found with why it does not count."""
    for check in checks:
        check.untested(why)


def _ask(part: Part) -> List[Check]:
    """Asks whether positions correspond, whether their log-probs are of one kind, and how far they are apart."""
    bias, biased = check_bias(part)
    checks = [
        check_tokens_shifted(part), check_lists_shifted(part), check_sampled_shifted(part), check_sampled_column(part),
        check_range(part), check_filter(part), check_temperature(part), bias, check_penalty(part, biased),
        check_uneven(part), check_outliers(part), check_weights(part),
    ]  # fmt: skip
    if checks[3].fault:
        _dismiss(checks[4:5], "the sampled log-probs are not of one kind")
    if _any_fault(checks[:2]):
        _dismiss(checks[2:], "the positions do not correspond")
    elif checks[2].fault:
        _dismiss(checks[3:], "the log-probs do not correspond")
    elif checks[4].fault:
        _dismiss(checks[5:], "not all positions are of one kind")
    elif checks[3].fault or _any_fault(checks[5:9]):
        _dismiss(checks[-3:], "the log-probs are not of one kind")
    elif checks[9].fault:
        _dismiss(checks[-2:], "the differences are those of single sequences")
    elif checks[10].fault:
        _dismiss(checks[-1:], "the differences are those of a few positions")
    return checks


def _named(checks: Sequence[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def _is_of_tokens(check: Check) -> bool:
    return check.name in ("bias", "penalty")


def _ask_each(part: Part) -> Tuple[Dict[str, List[int]], int]:
    """Returns the sequences that have a fault by themselves, by its name, and how many are long enough to tell."""
    pair = part.compared.pair
    shorter = np.minimum(pair.a.lengths, pair.b.lengths)[part.sequences]
    by_fault: Dict[str, List[int]] = {}
    long_enough = part.sequences[shorter >= _ENOUGH_ALONE].tolist()
    for sequence in long_enough:
        one = part.only([sequence])
        checks = [check_tokens_shifted(one)] if len(one.positions) < _ENOUGH_ALONE else _ask(one)
        fault = _first_fault(checks)
        # Only all sequences together can show that single tokens are moved.
        if fault is not None and not _is_of_tokens(fault):
            by_fault.setdefault(fault.name, []).append(sequence)
    return by_fault, len(long_enough)


def _name_sequences(check: Check, sequences: List[int], of: int) -> None:
    """Says which sequences have it, of all that there are."""
    check.sequences = sequences
    named = ", ".join(map(str, sequences[:_MAX_NAMED])) + (", ..." if len(sequences) > _MAX_NAMED else "")
    check.finding = f"In {len(sequences)} of {of} sequences ({named}) alone: {check.finding}"


def _ask_apart(part: Part) -> List[Check]:
    """Asks about all sequences, those that differ from most by themselves."""
    together = _ask(part)
    fault = _first_fault(together)
    if len(part.sequences) < 2 or fault is not None and _is_of_tokens(fault):
        return together
    by_fault, tested = _ask_each(part)
    groups: List[Tuple[List[int], Check]] = []
    for name, sequences in sorted(by_fault.items()):
        found = _named(_ask(part.only(sequences)), name)
        if found.fault:
            groups.append((sequences, found))

    def others() -> Part:
        return part.without([sequence for sequences, _ in groups for sequence in sequences])

    odd = len(part.sequences) - len(others().sequences)
    if odd == 0 or odd * 2 > tested:
        return together
    checks = _ask(others())
    # A fault that the others have too is no fault of single sequences.
    apart = [group for group in groups if not _named(checks, group[1].name).fault]
    if len(apart) < len(groups):
        groups[:] = apart
        checks = _ask(others())
    for sequences, check in groups:
        _name_sequences(check, sequences, len(part.sequences))
        checks[checks.index(_named(checks, check.name))] = check
    return checks


def _without_fault(positions: int, size: DifferenceSize, left_out: bool, of_run: bool) -> str:
    if positions == 0:
        return "There is nothing to compare: no position is on both sides."
    if size.positions == 0:
        return "No check found a fault, but no position has a ratio."
    if not size.is_noise:
        return f"Whether there is a fault can't be told. {size.meaning}"
    # A run may be broken though its tokens are well.
    found = "Of its tokens: no fault was found" if of_run else "No fault was found"
    return f"{found}{' in what can be compared' if left_out else ''}. {size.meaning}"


def _name_filter(filtered: str, diagnosis: Diagnosis) -> None:
    """Puts the check of filters first, as a fault unless the policies agree. Then the last three checks, which any
    difference of kinds looks like, are not asked."""
    checks = diagnosis.checks
    agree = not _any_fault(checks) and diagnosis.d.is_noise
    check = _named(checks, "filter")
    checks.remove(check)
    checks.insert(0, check)
    if agree:
        return
    check.outcome = FAULT
    check.finding = (
        f"The records are renormalised over the tokens that a filter left ({filtered}): ratios mean something only if "
        "the current policy is renormalised over the same tokens."
    )
    for name in ("uneven", "outliers", "weights"):
        _named(checks, name).untested("the log-probs are not of one kind")


def _conclude(positions: int, of_run: bool, diagnosis: Diagnosis) -> None:
    """Adds what follows from checks and size."""
    size, left_out = diagnosis.d, diagnosis.left_out
    diagnosis.fault = _any_fault(diagnosis.checks)
    diagnosis.verdict = [f"{check.finding} Look at {check.setting}." for check in diagnosis.checks if check.fault]
    if not diagnosis.fault:
        diagnosis.undecided = not size.is_noise
        # A tenth of all and more.
        much = sum(part.positions for part in left_out) * 9 >= size.positions
        diagnosis.verdict.append(_without_fault(positions, size, much, of_run))
    if left_out:
        diagnosis.verdict.append(describe_left_out(left_out, size.positions))
