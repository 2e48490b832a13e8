"""Your situation, use this: it says no more than the intervals do. Of the first study, until the
second is complete and says it."""

from typing import Dict, List, Optional, Tuple

from client.study.report import comparisons
from client.study.report.intervals import Difference, paired
from client.study.report.tables import table
from client.study.runs.results import ByArm

# The cells that are such a situation.
SITUATIONS: Dict[str, Tuple[str, ...]] = {
    "The engine computes as the trainer does, few updates per rollout":
        ("same", "same_smoothed", "N4", "N8"),
    "32 updates per rollout, or rollouts that are 16 or 64 rollouts old": ("N32", "lag16", "lag64"),
    "The learning rate is too high": ("rate6e-4", "rate1e-3"),
    "The engine's weights have 8 or 6 bits, or are e4m3": ("int8", "int6", "e4m3"),
    "The engine's weights have 5 or 4 bits, or are e5m2": ("int5", "int4", "e5m2"),
    "The engine's router of experts differs from the trainer's": ("router0.25", "router0.5"),
    "The old log-probs are recomputed by the trainer":
        ("int8_recomputed", "int5_recomputed", "int4_recomputed", "e4m3_recomputed",
         "e5m2_recomputed", "router0.5_recomputed"),
    "Right answers are rare": ("rare",),
    "Gradient norms are not clipped": ("unclipped", "unclipped5e-4"),
    "Responses are longer": ("long",),
}  # fmt: skip
_ARMS = ("grpo+sampled", "soft_acceptance+sampled")
CONFIRMED = (
    "Beside TIS too, what to use is said by\n"
    "[study_confirmation.md](study_confirmation.md#you-have-grpo-or-tis-use-this)."
)
_EXPLORATORY = """\
Exploratory, but for what the table above holds: among so many intervals some miss by chance.
"Higher" and "lower" count cells whose single 95% interval lies above or below 0; "none": neither. A
rule is named if it is higher in at least half of the cells and lower in none.

{by_situation}

Where another forward pass of the trainer is affordable:

{recomputing}"""


def _differences(found: ByArm, cells: Tuple[str, ...], arm: str) -> List[Difference]:
    """To GRPO, of the cells that have some."""
    pairs = [paired(found, cell, arm, cell, "grpo") for cell in cells]
    return [pair for pair in pairs if pair is not None and pair.pairs > 1]


def _signs(differences: List[Difference]) -> str:
    """"2 higher of 3", "1 higher, 1 lower of 6"; those that aren't told from chance are neither."""
    of_sign = (("higher", 1), ("lower", -1))
    counts = [(sum(of.sign == sign for of in differences), said) for said, sign in of_sign]
    told = ", ".join(f"{count} {said}" for count, said in counts if count)
    return f"{told or 'none'} of {len(differences)}"


def use(found: ByArm, cells: Tuple[str, ...]) -> Optional[str]:
    """An arm that is higher in at least half of the cells and lower in none; of several, the one
    with the largest mean. GRPO if no arm is; None without results."""
    best, best_mean = "clipped GRPO: nothing was shown to be better", 0.0
    for arm in _ARMS:
        differences = _differences(found, cells, arm)
        if not differences:
            return None
        signs = [difference.sign for difference in differences]
        mean = sum(difference.mean for difference in differences) / len(differences)
        if min(signs) >= 0 and 2 * sum(signs) >= len(signs) and mean > best_mean:
            best, best_mean = comparisons.name(arm), mean
    return best


def exploratory(found: ByArm) -> str:
    return _EXPLORATORY.format(by_situation=by_situation(found), recomputing=_recomputing(found))


def by_situation(found: ByArm) -> str:
    rows = []
    for situation, cells in SITUATIONS.items():
        best = use(found, cells)
        if best is not None:
            signs = [_signs(_differences(found, cells, arm)) for arm in _ARMS]
            rows.append([situation, best, *signs, ", ".join(cells)])
    headings = "your situation", "use", "SIS less GRPO", "soft acceptance less GRPO", "cells"
    return table(headings, rows)


def _recomputing(found: ByArm) -> str:
    """What the trainer's own forward pass over the rollout is worth, by engine."""
    rows = []
    for cell in ("int8", "int5", "int4", "e4m3", "e5m2", "router0.5"):
        pairs = [
            paired(found, f"{cell}_recomputed", "grpo", cell, arm)
            for arm in ("grpo", "soft_acceptance+sampled")
        ]
        if None not in pairs:
            rows.append([cell, *(pair.text() for pair in pairs if pair is not None)])
    recomputed = "GRPO with recomputed log-probs, less GRPO"
    return table(
        ("engine", recomputed, "less soft acceptance on the engine's log-probs"), rows
    )
