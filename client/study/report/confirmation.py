"""Writes study_confirmation.md, the report of the second confirming study, and its table:
confirmation.py DESIGN RESULTS FOLDER"""

import pathlib
import sys
from typing import Dict, List, Tuple

from client.study.report.comparisons import name
from client.study.report.intervals import Difference, paired
from client.study.report.recommendation import (
    GRPO, RULES, TIS, WITH_SETS, WITHOUT_SETS, Situation,
)  # fmt: skip
from client.study.report.tables import by_arm, differences, mean, tab_separated, table
from client.study.runs import design, results

_TEMPLATE = pathlib.Path(__file__).with_name("confirmation.template")
# Of cells that differ from another only in what the trainer recomputes.
_RECOMPUTED = ("_recomputed", "_proximal")
# The others, in words.
_SITUATIONS = {
    "same": "The engine computes as the trainer does",
    "int5": "The engine's weights have 5 bits",
    "int4": "The engine's weights have 4 bits",
    "e5m2": "The engine's weights are e5m2",
    "two_engines": "Two engines, by 4 bits and e5m2",
    "router0.5": "The engine's router of experts differs",
    "lag64": "Rollouts are 64 rollouts old",
    "int4_lag64": "Rollouts are 64 rollouts old, by 4 bits",
    "mixed_ages": "Rollouts are 0 to 64 rollouts old",
    "large": "A larger model, by 5 bits",
}
# What the reader has.
_HAD = {GRPO: "GRPO", TIS: "TIS"}
_NEEDS = ("", " (sets)", " (sets)", " (sets, a draw)")
_SHORT = {
    "higher": "higher", "as good as": "as good", "not to be told apart": "open", "lower": "lower",
}  # fmt: skip

# (arm, arm that it is compared with) -> the first less the second.
_ByPair = Dict[Tuple[str, str], Difference]


def situation(cell: str) -> str:
    for ending in _RECOMPUTED:
        cell = cell.removesuffix(ending)
    return cell


def _primary(plan: design.Design, found: results.ByArm) -> Dict[str, _ByPair]:
    """Of a complete study, by situation. Intervals hold with all others."""
    together = 1 - 0.05 / len(plan.primary)
    pairs: Dict[str, _ByPair] = {of: {} for of in _SITUATIONS}
    for cell, arm, base_cell, base_arm in plan.primary:
        joint = paired(found, cell, arm, base_cell, base_arm, "final_reward", together)
        assert joint is not None
        pairs[situation(cell)][arm, base_arm] = joint
    return pairs


def _passes(plan: design.Design, of: str) -> Dict[str, int]:
    """Forward passes of the trainer over the rollout."""
    cells = {arm: cell for cell, arm, _, _ in plan.primary if situation(cell) == of}
    return {arm: int("recomputed" in plan.cells[cells[arm]].settings) for arm in RULES}


def _told(plan: design.Design, joint: Difference) -> str:
    """Short, for a table of many columns."""
    return f"{_SHORT[joint.verdict(plan.margin)]} {1000 * joint.mean:+.0f}±{1000 * joint.half:.0f}"


def _beside(plan: design.Design, pairs: Dict[str, _ByPair]) -> str:
    """A row per situation for readers who have GRPO, and one for those who have TIS."""
    rows = []
    counts = {base: {arm: dict.fromkeys(_SHORT, 0) for arm in RULES} for base in _HAD}
    for of, by_pair in pairs.items():
        verdicts = {pair: one.verdict(plan.margin) for pair, one in by_pair.items()}
        advised = Situation(_passes(plan, of), verdicts)
        for base, has in _HAD.items():
            if (RULES[0], base) not in verdicts:
                continue
            where = f"{_SITUATIONS[of]} (`{of}`)" if base == GRPO else ""
            use = advised.instead_of(base)
            texts = []
            for arm in RULES:
                counts[base][arm][verdicts[arm, base]] += 1
                cost = ", a pass" if advised.passes[arm] else ""
                texts.append(_told(plan, by_pair[arm, base]) + cost)
            rows.append([where, has, *texts, _HAD.get(use) or f"**{name(use)}**"])
    for base, has in _HAD.items():
        texts = [
            ", ".join(f"{count} {_SHORT[said]}" for said, count in of.items() if count)
            for of in counts[base].values()
        ]
        rows.append(["All", has, *texts, ""])
    rules = [name(arm) + needs for arm, needs in zip(RULES, _NEEDS)]
    return table(["where", "you have", *rules, "so use"], rows)


def _of_sets(plan: design.Design, pairs: Dict[str, _ByPair]) -> str:
    sets = (WITH_SETS, WITHOUT_SETS)
    rows = [[f"`{of}`", _told(plan, by_pair[sets])] for of, by_pair in pairs.items()]
    return table(["where", "with sets less without"], rows)


def _all_arms(plan: design.Design, found: results.ByArm, complete: bool) -> str:
    """How many runs there are. Of a complete study what came of them, and differences to GRPO on
    the engine's log-probs, each with its own 95% interval."""

    def texts(cell: design.Cell, arm: str, runs: List[results.Outcome]) -> List[str]:
        told = [
            *(f"{mean(runs, field):.3f}" for field in results.OUTCOMES),
            *differences(found, cell.name, arm, (situation(cell.name), GRPO), results.OUTCOMES),
            f"{mean(runs, 'd'):.2f}", str(sum(run.collapsed for run in runs)),
        ]  # fmt: skip
        return [str(len(runs)), *(told if complete else ())]

    headings = (
        "final", "mean", "greedy", "final less GRPO", "mean less GRPO", "greedy less GRPO", "D",
        "collapsed",
    )  # fmt: skip
    return tab_separated(*by_arm(plan, found, ["runs", *(headings if complete else ())], texts))


def write(design_path: pathlib.Path, results_path: pathlib.Path, folder: pathlib.Path) -> None:
    plan = design.read(design_path)
    there = results.read(results_path)
    found = results.by_arm(there)
    runs = len(plan.runs)
    complete = set(plan.runs) <= there.keys()
    state = f"All {runs} runs of the design are in."
    beside, of_sets = ("*Not all runs are in, so nothing is told here.*",) * 2
    if complete:
        pairs = _primary(plan, found)
        beside, of_sets = _beside(plan, pairs), _of_sets(plan, pairs)
    else:
        state = f"**{len(there)} of {runs} runs are in: nothing is confirmed before all are.**"
    (folder / "study").mkdir(parents=True, exist_ok=True)
    (folder / "study" / "confirmation.tsv").write_text(_all_arms(plan, found, complete))
    (folder / "study_confirmation.md").write_text(
        _TEMPLATE.read_text().format(
            state=state, beside=beside, of_sets=of_sets, comparisons=len(plan.primary),
            margin=1000 * (plan.margin or 0),
        )  # fmt: skip
    )


if __name__ == "__main__":
    write(*map(pathlib.Path, sys.argv[1:]))
