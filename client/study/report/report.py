"""Writes study.md, the report of the study, its pictures and tables from the results:
report.py CELLS RESULTS FOLDER"""

import pathlib
import sys
from typing import List

from client.study.report import comparisons, figures, paper
from client.study.report.intervals import paired
from client.study.report.tables import by_arm, differences, mean, primary, tab_separated, table
from client.study.runs import design, results

_TEMPLATE = pathlib.Path(__file__).with_name("study.template")
_MAIN_ARMS = ("grpo", "grpo+sampled", "grpo+expected", "soft_acceptance+sampled")
# Of the learning curves.
_CELLS = (
    "same", "int5", "int4", "e5m2", "router0.5", "lag64", "rare", "rate1e-3", "unclipped5e-4",
)  # fmt: skip
_ARMS = ("grpo", "grpo+sampled", "soft_acceptance+sampled")


def _all_cells(plan: design.Design, found: results.ByArm) -> str:
    def texts(cell: design.Cell, arm: str, runs: List[results.Outcome]) -> List[str]:
        base = comparisons.base(cell, arm)
        return [
            str(len(runs)), f"{mean(runs, 'final_reward'):.3f}",
            "" if base == (cell.name, arm) else comparisons.named(*base, cell.name),
            *differences(found, cell.name, arm, base, results.OUTCOMES),
            *(f"{mean(runs, field):.2f}" for field in ("accept_rate", "d", "d_sis", "entropy")),
            f"{mean(runs, 'zeroed'):.1%}",
            f"{max(run.values['largest_gradient'] for run in runs):.0f}",
            str(sum(run.collapsed for run in runs)),
        ]  # fmt: skip

    headings = (
        "runs", "final", "less", "final, difference", "mean, difference", "greedy, difference",
        "accepted", "D", "D_SIS", "entropy", "no gradient", "largest norm", "collapsed",
    )  # fmt: skip
    return tab_separated(*by_arm(plan, found, headings, texts))


def _collapses(plan: design.Design, found: results.ByArm) -> str:
    rows = []
    for cell in plan.cells:
        of_arms = [found.get(cell, {}).get(arm, {}).values() for arm in _MAIN_ARMS]
        collapsed = [sum(run.collapsed for run in runs) for runs in of_arms]
        if any(collapsed):
            counts = zip(collapsed, of_arms)
            rows.append([cell, *(f"{n} of {len(runs)}" if runs else "" for n, runs in counts)])
    if not rows:
        return "None of these arms has collapsed in any cell."
    return table(("cell", *map(comparisons.name, _MAIN_ARMS)), rows)


def _forest(plan: design.Design, found: results.ByArm, main: bool) -> str:
    rows = []
    for cell, arm, base_cell, base_arm in comparisons.all_of(plan):
        difference = paired(found, cell, arm, base_cell, base_arm)
        if difference is not None and (arm in _MAIN_ARMS) == main:
            base = comparisons.named(base_cell, base_arm, cell)
            rows.append((f"{cell}: {comparisons.name(arm)} − {base}", arm, difference))
    return figures.forest(rows, "final reward")


def write(cells: pathlib.Path, results_path: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes study.md into the folder, pictures and large tables into its folder study."""
    plan = design.read(cells)
    there = results.read(results_path)
    found = results.by_arm(there)
    pictures = folder / "study"
    pictures.mkdir(parents=True, exist_ok=True)
    (pictures / "forest.svg").write_text(_forest(plan, found, main=True))
    (pictures / "forest_others.svg").write_text(_forest(plan, found, main=False))
    panels = figures.of_rollouts(found, _CELLS, _ARMS)
    (pictures / "curves.svg").write_text(figures.curves(panels, 3, "% of the run"))
    (pictures / "cells.tsv").write_text(_all_cells(plan, found))
    (pictures / "paper.tsv").write_text(paper.beside(found))
    runs = len(plan.runs)
    state = f"All {runs} runs of the design are in."
    if len(there) < runs:
        state = f"**Not complete: {len(there)} of {runs} runs.** Quote nothing before all are in."
    text = _TEMPLATE.read_text().format(
        state=state, primary=table(*primary(plan, found)),
        collapses=_collapses(plan, found),
    )  # fmt: skip
    (folder / "study.md").write_text(text)


if __name__ == "__main__":
    write(*map(pathlib.Path, sys.argv[1:]))
