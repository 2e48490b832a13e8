"""Writes study_confirmation.md, the report of the second confirming study, and its table:
confirmation.py DESIGN RESULTS FOLDER"""

import pathlib
import sys
from typing import Dict, List, Tuple

from client.study.report.comparisons import name
from client.study.report.intervals import paired
from client.study.report.tables import by_arm, differences, mean, tab_separated, table
from client.study.runs import design, results

_TEMPLATE = pathlib.Path(__file__).with_name("confirmation.template")
# Of cells that differ from another only in what the trainer recomputes.
_RECOMPUTED = ("_recomputed", "_proximal")


def situation(cell: str) -> str:
    for ending in _RECOMPUTED:
        cell = cell.removesuffix(ending)
    return cell


def _compared(plan: design.Design, found: results.ByArm) -> str:
    """Of a complete study a table for every arm that others are compared with: a row per situation.
    Intervals hold with all others."""
    together = 1 - 0.05 / len(plan.primary)
    by_base: Dict[str, Dict[Tuple[str, str], str]] = {}
    for cell, arm, base_cell, base_arm in plan.primary:
        joint = paired(found, cell, arm, base_cell, base_arm, "final_reward", together)
        assert joint is not None
        said = f"{joint.text()}, {joint.verdict(plan.margin)}"
        by_base.setdefault(base_arm, {})[situation(cell), arm] = said
    parts = {}
    for base, said_of in by_base.items():
        arms = list(dict.fromkeys(arm for _, arm in said_of))
        rows = [
            [of, *(said_of.get((of, arm), "") for arm in arms)]
            for of in dict.fromkeys(of for of, _ in said_of)
        ]
        parts[f"Less {name(base)}:\n\n" + table(["cell", *map(name, arms)], rows)] = len(arms)
    # Those that most arms are compared with first.
    return "\n\n".join(sorted(parts, key=lambda part: -parts[part]))


def _all_arms(plan: design.Design, found: results.ByArm) -> str:
    """Differences to GRPO on the engine's log-probs, each with its own 95% interval."""

    def texts(cell: design.Cell, arm: str, runs: List[results.Outcome]) -> List[str]:
        return [
            str(len(runs)), *(f"{mean(runs, field):.3f}" for field in results.OUTCOMES),
            *differences(found, cell.name, arm, (situation(cell.name), "grpo"), results.OUTCOMES),
            f"{mean(runs, 'd'):.2f}", str(sum(run.collapsed for run in runs)),
        ]  # fmt: skip

    headings = (
        "runs", "final", "mean", "greedy", "final less GRPO", "mean less GRPO", "greedy less GRPO",
        "D", "collapsed",
    )  # fmt: skip
    return tab_separated(*by_arm(plan, found, headings, texts))


def write(design_path: pathlib.Path, results_path: pathlib.Path, folder: pathlib.Path) -> None:
    plan = design.read(design_path)
    there = results.read(results_path)
    found = results.by_arm(there)
    runs = len(plan.runs)
    complete = len(there) == runs
    state = f"All {runs} runs of the design are in."
    compared = "Not all of them are in, so none is told here."
    if complete:
        compared = _compared(plan, found)
    else:
        state = f"**{len(there)} of {runs} runs are in: nothing is confirmed before all are.**"
    (folder / "study").mkdir(parents=True, exist_ok=True)
    (folder / "study" / "confirmation.tsv").write_text(_all_arms(plan, found))
    (folder / "study_confirmation.md").write_text(
        _TEMPLATE.read_text().format(
            state=state, compared=compared, comparisons=len(plan.primary),
            margin=1000 * (plan.margin or 0),
        )  # fmt: skip
    )


if __name__ == "__main__":
    write(*map(pathlib.Path, sys.argv[1:]))
