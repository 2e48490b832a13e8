"""Writes the report of a study on a language model, its picture, and a table of what the service measured:
NAME.md, NAME.svg and NAME.tsv, if results are in NAME.jsonl.
report.py DESIGN RESULTS FOLDER"""

import collections
import dataclasses
import itertools
import pathlib
import sys
from typing import Iterable, List

import numpy as np

from client.study.language_model import results as language_model_results
from client.study.language_model.results import Result, Results
from client.study.language_model.settings import Settings
from client.study.report import comparisons, figures, intervals, tables
from client.study.runs import design
from client.study.runs.design import Run
from client.study.runs.results import ByArm, Outcome, by_arm

_TEMPLATE = pathlib.Path(__file__).with_name("report.template")
# Field -> heading.
_OUTCOMES = {
    "final_reward": "final",
    "final_greedy": "greedy",
    "mean_reward": "mean of rollouts",
    "last_quarter": "last quarter",
}
_TASKS = {
    "+": "add two numbers from {} to {}, with the sum",
    "-": "subtract numbers from {} to {}, with the difference",
}
_LAG8 = "; in cells `lag8` of eight before"
_MARGIN = "; a rule is as good as another where all of it is within ±{:.0f}"
_OF_DIFFERENCES = ("final_reward", "mean_reward")
# Means over a run's rollouts -> heading, and how they are written.
_MEASURED = {
    "accept_rate": ("accepted", ".1%"),
    "expected_accept_rate": ("expected", ".1%"),
    "d": ("D", ".3f"),
    "d_sis": ("D_SIS", ".3f"),
    "residual_mass": ("residual mass", ".2%"),
    "staleness": ("staleness", ".1f"),
    "gradient_norm": ("gradient norm", ".1f"),
}


def outcome(result: Result) -> Outcome:
    """In the form that the study in miniature compares."""
    rollouts = result["rollouts"]
    rewards = rollouts["reward"]
    last = rewards[-max(1, len(rewards) // 4) :]
    return Outcome(
        {
            **{name: result[name] for name in ("final_reward", "final_greedy", "mean_reward")},
            "last_quarter": sum(last) / len(last),
            **{name: sum(rollouts[name]) / len(rollouts[name]) for name in _MEASURED},
        },
        np.array(rewards),
    )


def _outcomes(cell: design.Cell, arm: str, runs: List[Outcome]) -> List[str]:
    """Means over runs, with their own 95% intervals."""
    texts = []
    for field in _OUTCOMES:
        of = intervals.of_differences(np.array([run.values[field] for run in runs]))
        texts.append(f"{of.mean:.3f}" + (f" ± {of.half:.3f}" if of.pairs > 1 else ""))
    return texts


def _differences(plan: design.Design, found: ByArm) -> str:
    rows = [
        [cell, comparisons.name(arm), comparisons.name(base),
         *tables.differences(found, cell, arm, (cell, base), _OF_DIFFERENCES)]
        for cell, of in plan.cells.items()
        if cell in found
        for base, arm in itertools.combinations(of.arms, 2)
    ]  # fmt: skip
    headings = [_OUTCOMES[field] for field in _OF_DIFFERENCES]
    return tables.table(("cell", "first", "less", *headings), rows)


def _curves(plan: design.Design, results: Results, found: ByArm) -> str:
    panels = []
    for cell in (plan.cells[name] for name in plan.cells if name in found):
        (rollouts,) = figures.of_rollouts(found, [cell.name], list(cell.arms))
        own = {}
        for arm in cell.arms:
            evaluations = [
                results[Run(cell.name, arm, seed)]["evaluations"] for seed in found[cell.name][arm]
            ]
            x = np.array([int(rollout) for rollout in evaluations[0]]) / len(rollouts.x) * 100
            own[arm] = np.array([[reward for reward, _ in of.values()] for of in evaluations])
        panels.append(figures.Panel(f"{cell.name}: rollouts", rollouts.x, rollouts.curves))
        title = f"{cell.name}: the policy's own weights, held-out problems"
        panels.append(figures.Panel(title, x, own))
    return figures.curves(panels, 2, "% of the run")


def _seeds(plan: design.Design, finished: Iterable[Run]) -> str:
    """How many are finished: of every cell, where they are made in turn."""
    of_cells = collections.Counter(run.cell for run in {run._replace(arm="") for run in finished})
    if not plan.cells_in_turn:
        return f"{max(of_cells.values())} of {plan.seeds} seeds"
    return ", ".join(f"{of_cells[cell]} of {plan.seeds} seeds in `{cell}`" for cell in plan.cells if of_cells[cell])


def write(design_path: pathlib.Path, results_path: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes page, picture and table into the folder."""
    plan = design.read(design_path)
    results = language_model_results.read(results_path)
    finished = plan.finished(results)
    name = results_path.stem
    template, path = _TEMPLATE.read_text(), folder / f"{name}.md"
    if not finished:
        head = template[: template.index("**")].format(design=design_path.name)
        path.write_text(head + "**There are no results yet.**\n")
        return
    found = by_arm({run: outcome(result) for run, result in finished.items()})
    (folder / f"{name}.svg").write_text(_curves(plan, results, found))
    (folder / f"{name}.tsv").write_text(
        tables.tab_separated(*tables.measured(plan, found, _MEASURED))
    )
    left_out = len(results) - len(finished)
    any_result = next(iter(results.values()))
    device = any_result.get("device", "CPU")
    settings = Settings.of(plan.settings)
    text = template.format(
        name=name,
        design=design_path.name,
        finished=len(finished),
        planned=len(plan.runs),
        seeds=_seeds(plan, finished),
        what=_TASKS[settings.operation].format(settings.smallest, settings.largest),
        generates={"vllm": "vLLM"}.get(settings.engine, settings.engine),
        lag=_LAG8 if any(cell.settings.get("lag") == "8" for cell in plan.cells.values()) else "",
        margin=_MARGIN.format(1000 * plan.margin) if plan.margin else "",
        left_out=f"Left out, as a seed isn't finished: {left_out}. " if left_out else "",
        minutes=sum(result["seconds"] for result in results.values()) / 60,
        versions=", ".join(f"{name} {of}" for name, of in any_result["versions"].items()),
        sources=any_result["sources"],
        device="" if device == "CPU" else f" and a GPU that others share, {device}",
        primary=tables.table(*tables.primary(plan, found)),
        outcomes=tables.table(*tables.by_arm(plan, found, _OUTCOMES.values(), _outcomes)),
        differences=_differences(plan, found),
        **dataclasses.asdict(settings),
    )  # fmt: skip
    path.write_text(text)


if __name__ == "__main__":
    write(*map(pathlib.Path, sys.argv[1:]))
