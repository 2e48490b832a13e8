"""One table: your situation, use this. It says no more than the intervals do."""

import dataclasses
from typing import List, Optional, Tuple

from client.study.report import comparisons
from client.study.report.intervals import Difference, paired
from client.study.report.results import Results


@dataclasses.dataclass(frozen=True)
class Situation:
    text: str
    # Cells that are such a situation.
    cells: Tuple[str, ...]


SITUATIONS = (
    Situation("The engine computes as the trainer does, few updates per rollout", ("same", "same_smoothed", "N4", "N8")),
    Situation("32 updates per rollout, or rollouts that are 16 or 64 rollouts old", ("N32", "lag16", "lag64")),
    Situation("The learning rate is too high", ("rate6e-4", "rate1e-3")),
    Situation("The engine's weights have 8 or 6 bits, or are e4m3", ("int8", "int6", "e4m3")),
    Situation("The engine's weights have 5 or 4 bits, or are e5m2", ("int5", "int4", "e5m2")),
    Situation("The engine's router of experts differs from the trainer's", ("router0.25", "router0.5")),
    Situation(
        "The old log-probs are recomputed by the trainer",
        ("int8_recomputed", "int5_recomputed", "int4_recomputed", "e4m3_recomputed", "e5m2_recomputed",
         "router0.5_recomputed"),
    ),
    Situation("Right answers are rare", ("rare",)),
    Situation("Gradient norms are not clipped", ("unclipped", "unclipped5e-4")),
    Situation("Responses are longer", ("long",)),
)
_ARMS = ("grpo+sampled", "soft_acceptance+sampled")


def _differences(results: Results, situation: Situation, arm: str) -> List[Tuple[str, Difference]]:
    found = [(cell, paired(results, cell, arm, cell, "grpo")) for cell in situation.cells]
    return [(cell, difference) for cell, difference in found if difference is not None and difference.pairs > 1]


def _signs(differences: List[Tuple[str, Difference]]) -> str:
    """"higher in 2 of 3 cells, lower in none"."""
    def count(sign: int) -> str:
        cells = sum(difference.sign == sign for _, difference in differences)
        return str(cells) if cells else "none"

    return f"higher in {count(1)}, lower in {count(-1)} of {len(differences)}"


def _use(results: Results, situation: Situation) -> Optional[str]:
    """An arm that is higher in at least half of the cells and lower in none; of several, the one with the
    largest mean. "GRPO" if no arm is; None without results."""
    best, best_mean = "clipped GRPO: nothing was shown to be better", 0.0
    for arm in _ARMS:
        differences = _differences(results, situation, arm)
        if not differences:
            return None
        signs = [difference.sign for _, difference in differences]
        mean = sum(difference.mean for _, difference in differences) / len(differences)
        if min(signs) >= 0 and 2 * sum(signs) >= len(signs) and mean > best_mean:
            best, best_mean = comparisons.name(arm), mean
    return best


def table(results: Results) -> List[str]:
    lines = [
        "| your situation | use | SIS less GRPO | soft acceptance less GRPO | cells |",
        "|---|---|---|---|---|",
    ]
    for situation in SITUATIONS:
        use = _use(results, situation)
        if use is None:
            continue
        signs = [_signs(_differences(results, situation, arm)) for arm in _ARMS]
        lines.append(f"| {situation.text} | {use} | {signs[0]} | {signs[1]} | {', '.join(situation.cells)} |")
    return lines


def recomputing(results: Results) -> List[str]:
    """What the trainer's own forward pass over the rollout is worth, by engine."""
    lines = [
        "| engine | GRPO with recomputed log-probs, less GRPO | less soft acceptance on the engine's log-probs |",
        "|---|---|---|",
    ]
    for cell in ("int8", "int5", "int4", "e4m3", "e5m2", "router0.5"):
        pairs = [paired(results, f"{cell}_recomputed", "grpo", cell, arm) for arm in ("grpo", "soft_acceptance+sampled")]
        if None not in pairs:
            lines.append(f"| {cell} | " + " | ".join(pair.text() for pair in pairs if pair is not None) + " |")
    return lines
