"""Writes study_language_model.md, the report of the study on a language model, and its picture.

    report.py [design [results [folder of the report]]]
"""

import pathlib
import sys
from typing import Dict, List

import numpy as np

from client.study.language_model import results as language_model_results
from client.study.language_model.results import Result, Results
from client.study.language_model.schedule import Run
from client.study.language_model.settings import Settings
from client.study.report import comparisons, design, figures, intervals
from client.study.report import results as study_results
from client.study.report.intervals import paired

_CELLS = {"bfloat16": "vLLM in bfloat16", "int4": "vLLM with weights of 4 bits"}
# Field -> heading, of differences to GRPO.
_OUTCOMES = {
    "final_reward": "final",
    "final_greedy": "greedy",
    "mean_reward": "mean of rollouts",
    "last_quarter": "last quarter",
}
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


def _mean(values: List[float]) -> float:
    return sum(values) / len(values)


def _run(result: Result) -> study_results.Run:
    """In the form that the study in miniature compares."""
    rewards = result["rollouts"]["reward"]
    values = {name: result[name] for name in ("final_reward", "final_greedy", "mean_reward")}
    values["last_quarter"] = _mean(rewards[-max(1, len(rewards) // 4) :])
    values.update({name: _mean(result["rollouts"][name]) for name in _MEASURED})
    return study_results.Run(values, np.array(rewards))


def of_finished_seeds(plan: design.Design, results: Results) -> study_results.Results:
    finished = set(language_model_results.finished_seeds(plan, results))
    found: study_results.Results = {}
    for run, result in results.items():
        if run.seed in finished:
            found.setdefault(run.cell, {}).setdefault(run.arm, {})[run.seed] = _run(result)
    return found


def _primary(plan: design.Design, found: study_results.Results) -> List[str]:
    together = 1 - 0.05 / len(plan.primary)
    lines = [
        "| comparison | pairs | difference | all of them together | so the first is |",
        "|---|---|---|---|---|",
    ]
    for comparison in plan.primary:
        single = paired(found, *comparison)
        joint = paired(found, *comparison, confidence=together)
        assert single is not None and joint is not None
        cell, arm, _, base_arm = comparison
        lines.append(
            f"| {_CELLS[cell]}: {comparisons.name(arm)} less {comparisons.name(base_arm)} | {single.pairs} | "
            f"{single.text()} | {joint.text()} | {joint.verdict if joint.pairs > 1 else 'of one pair'} |"
        )
    return lines


def _value(runs: Dict[int, study_results.Run], field: str) -> str:
    """The mean over runs, with its own 95% interval."""
    of = intervals.of_differences(np.array([run.values[field] for run in runs.values()]))
    return f"{of.mean:.3f}" + (f" ± {of.half:.3f}" if of.pairs > 1 else "")


def _outcomes(plan: design.Design, found: study_results.Results) -> List[str]:
    lines = ["| cell | arm | " + " | ".join(_OUTCOMES.values()) + " |", "|---|---|" + "---|" * len(_OUTCOMES)]
    for cell in plan.cells.values():
        for arm in cell.arms:
            values = [_value(found[cell.name][arm], field) for field in _OUTCOMES]
            lines.append(f"| {cell.name} | {comparisons.name(arm)} | " + " | ".join(values) + " |")
    return lines


def _differences(plan: design.Design, found: study_results.Results) -> List[str]:
    lines = ["| cell | first | less | " + " | ".join(_OUTCOMES.values()) + " |", "|---|---|---|" + "---|" * len(_OUTCOMES)]
    for cell in plan.cells.values():
        arms = list(cell.arms)
        for number, base in enumerate(arms):
            for arm in arms[number + 1 :]:
                pairs = [paired(found, cell.name, arm, cell.name, base, field) for field in _OUTCOMES]
                texts = [pair.text() for pair in pairs if pair is not None]
                lines.append(
                    f"| {cell.name} | {comparisons.name(arm)} | {comparisons.name(base)} | " + " | ".join(texts) + " |"
                )
    return lines


def _measured(plan: design.Design, found: study_results.Results) -> List[str]:
    headings = [heading for heading, _ in _MEASURED.values()]
    lines = ["| cell | arm | " + " | ".join(headings) + " |", "|---|---|" + "---|" * len(headings)]
    for cell in plan.cells.values():
        for arm in cell.arms:
            runs = found[cell.name][arm].values()
            values = [
                format(_mean([run.values[name] for run in runs]), form) for name, (_, form) in _MEASURED.items()
            ]
            lines.append(f"| {cell.name} | {comparisons.name(arm)} | " + " | ".join(values) + " |")
    return lines


def _curves(plan: design.Design, results: Results, found: study_results.Results, path: pathlib.Path) -> None:
    panels = []
    for cell in plan.cells.values():
        (rollouts,) = figures.of_rollouts(found, [cell.name], list(cell.arms))
        own = {}
        for arm in cell.arms:
            evaluations = [results[Run(cell.name, arm, seed)]["evaluations"] for seed in found[cell.name][arm]]
            x = np.array([int(rollout) for rollout in evaluations[0]]) / len(rollouts.x) * 100
            own[arm] = np.array([[reward for reward, _ in of.values()] for of in evaluations])
        panels.append(figures.Panel(f"{cell.name}: rollouts", rollouts.x, rollouts.curves))
        panels.append(figures.Panel(f"{cell.name}: the policy's own weights, held-out problems", x, own))
    figures.curves(panels, 2, path)


def _setting() -> str:
    settings = Settings()
    return (
        "SmolLM2-135M-Instruct learns to add two numbers up to "
        f"{settings.largest}, with the sum as the whole line, by TRL's GRPOTrainer: float32 weights, multiplied in bfloat16. "
        f"A run is {settings.rollouts} rollouts of {settings.prompts} problems with {settings.group} responses of at most "
        f"{settings.tokens} tokens; each is used for {settings.updates} updates of AdamW, learning rate "
        f"{settings.learning_rate:g}. vLLM gets new weights one rollout late, so the policy is 4 to 7 updates ahead of the one "
        f"that generated. It generates in bfloat16; in the cell `int4` the matrices of its decoder are rounded to 4 bits "
        "besides, in groups of 32 with one scale, each time that weights are loaded. The "
        f"{settings.top_k} most probable tokens of every position are recorded, and the service decides about every token in "
        "every arm; what the trainer makes of it is all that arms differ in."
    )


def write(design_path: pathlib.Path, results_path: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes study_language_model.md into the folder, and the picture into its folder study."""
    plan = design.read(design_path)
    results = language_model_results.read(results_path)
    found = of_finished_seeds(plan, results)
    heading = [
        "# Does it help a language model?",
        "",
        "Written by `tools/study --language-model` from its results; don't edit it. The design, with cells, arms, seeds and "
        "tests, is [client/study/language_model/design.txt](../client/study/language_model/design.txt). It was committed "
        "before the first of its runs. [study.md](study.md) is its larger sibling, of a smaller model.",
        "",
    ]
    path = folder / "study_language_model.md"
    if not found:
        path.write_text("\n".join([*heading, "**There are no results yet.**", ""]))
        return
    seeds = language_model_results.finished_seeds(plan, results)
    planned = max(count for cell in plan.cells.values() for count in cell.arms.values())
    of_seeds = sum(run.seed in seeds for run in results)
    left_out = len(results) - of_seeds
    any_result = next(iter(results.values()))
    versions = ", ".join(f"{name} {version}" for name, version in any_result["versions"].items())
    minutes = sum(result["seconds"] for result in results.values()) / 60
    heading += [
        f"**{len(seeds)} of {planned} seeds are finished: {of_seeds} runs.** "
        + (f"{left_out} runs of a seed that isn't finished are left out. " if left_out else "")
        + f"With {len(seeds)} seeds only large differences can be told from chance; the intervals say how large.",
        "",
        _setting(),
        "",
        f"[The results](study/language_model.jsonl) took {minutes:.0f} minutes of one core each, with {versions}; sources "
        f"{any_result['sources']}.",
    ]
    pictures = folder / "study"
    pictures.mkdir(parents=True, exist_ok=True)
    _curves(plan, results, found, pictures / "language_model.svg")
    parts = [
        ("", heading),
        ("The comparisons that were fixed beforehand", [
            "Differences of the final reward in thousandths, means over pairs of runs with the same seed, ± half of the 95% "
            "interval by Student's t; an asterisk marks an interval without 0. The fourth column has intervals that hold "
            "for all of these together with 95% (Bonferroni); the last column follows from it.",
            "", *_primary(plan, found)]),
        ("What the arms came to", [
            "*Final*: the probability of the right response to held-out problems, by the trainer's own weights at the "
            "end; *greedy*: the share of them of which it is the most probable one. *Mean of rollouts* and *last quarter*: "
            "rewards as vLLM sampled them, with its weights. Means over seeds with 95% intervals, which are wide because "
            "seeds differ more than arms do: the pairs below say more.", "", *_outcomes(plan, found)]),
        ("All differences", [
            "In thousandths, of pairs, as above. Only those of the first table were fixed beforehand; among so many some "
            "miss by chance.", "", *_differences(plan, found)]),
        ("Learning curves", [
            "Means over seeds; bands are standard errors.", "",
            "![rewards of rollouts, and of the trainer's own weights, by arm](study/language_model.svg)"]),
        ("What the service measured", [
            "Means over all updates of all runs: the share of tokens that were accepted, and what is expected of it without "
            "the chance of draws; D and D_SIS in nats per token, whether the arm uses the decisions or not; how many "
            "updates the policy was ahead. The norm is TRL's, before it is clipped to 1.", "", *_measured(plan, found)]),
    ]  # fmt: skip
    text = "\n\n".join((f"## {title}\n\n" if title else "") + "\n".join(lines) for title, lines in parts)
    path.write_text(text + "\n")


if __name__ == "__main__":
    defaults = ("client/study/language_model/design.txt", "docs/study/language_model.jsonl", "docs")
    given = sys.argv[1:]
    write(*(pathlib.Path(path) for path in (*given, *defaults[len(given):])))
