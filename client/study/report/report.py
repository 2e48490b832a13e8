"""Writes study.md, the report of the study, and its pictures from the results.

    report.py [cells [results [folder of the report]]]
"""

import pathlib
import sys
from typing import List, Tuple

from client.study.report import advice, comparisons, design, figures, paper, results
from client.study.report.intervals import paired

_FIELDS = ("final_reward", "mean_reward", "final_greedy")


def _mean(values: List[float]) -> float:
    return sum(values) / len(values)


def _primary(plan: design.Design, found: results.Results) -> List[str]:
    together = 1 - 0.05 / len(plan.primary)
    lines = [
        "| comparison | pairs | difference | all of them together | so the first is |",
        "|---|---|---|---|---|",
    ]
    for cell, arm, base_cell, base_arm in plan.primary:
        single = paired(found, cell, arm, base_cell, base_arm)
        joint = paired(found, cell, arm, base_cell, base_arm, confidence=together)
        if single is None or joint is None:
            continue
        text = f"{cell}: {comparisons.name(arm)} less {base_cell + ': ' if base_cell != cell else ''}" \
            f"{comparisons.name(base_arm)}"
        lines.append(f"| {text} | {single.pairs} | {single.text()} | {joint.text()} | {joint.verdict} |")
    return lines


def _all_cells(plan: design.Design, found: results.Results) -> List[str]:
    lines = [
        "| cell | arm | runs | final | less | final, difference | mean | greedy | accepted | D | D_SIS | entropy | "
        "no gradient | largest norm | collapsed |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in plan.cells.values():
        for arm in cell.arms:
            runs = found.get(cell.name, {}).get(arm, {})
            if not runs:
                continue
            base_cell, base_arm = comparisons.base(cell, arm)
            less = ""
            differences = ["", "", ""]
            if (base_cell, base_arm) != (cell.name, arm):
                less = (base_cell + ": " if base_cell != cell.name else "") + comparisons.name(base_arm)
                pairs = [paired(found, cell.name, arm, base_cell, base_arm, field) for field in _FIELDS]
                differences = ["" if pair is None else pair.text() for pair in pairs]

            def mean(field: str, form: str) -> str:
                return format(_mean([run.values[field] for run in runs.values()]), form)

            largest = max(run.values["largest_gradient"] for run in runs.values())
            collapsed = sum(run.collapsed for run in runs.values())
            lines.append(
                f"| {cell.name} | {comparisons.name(arm)} | {len(runs)} | {mean('final_reward', '.3f')} | {less} | "
                f"{' | '.join(differences)} | {mean('accept_rate', '.2f')} | {mean('d', '.2f')} | "
                f"{mean('d_sis', '.2f')} | {mean('entropy', '.2f')} | {mean('zeroed', '.1%')} | {largest:.0f} | "
                f"{collapsed or ''} |"
            )
    return lines


def _collapses(plan: design.Design, found: results.Results) -> List[str]:
    arms = ("grpo", "grpo+sampled", "grpo+expected", "soft_acceptance+sampled")
    lines = ["| cell | " + " | ".join(comparisons.name(arm) for arm in arms) + " |", "|---|" + "---|" * len(arms)]
    for cell in plan.cells.values():
        counts = []
        for arm in arms:
            runs = found.get(cell.name, {}).get(arm, {})
            counts.append(f"{sum(run.collapsed for run in runs.values())} of {len(runs)}" if runs else "")
        if any(count and not count.startswith("0") for count in counts):
            lines.append(f"| {cell.name} | " + " | ".join(counts) + " |")
    return lines if len(lines) > 2 else ["None of these arms has collapsed in any cell."]


def _here(found: results.Results, cell: str, arm: str) -> str:
    finals = results.values(found, cell, arm, "final_reward")
    return f"{100 * _mean(finals):.1f}" if finals else ""


def _beside(found: results.Results, cell: str, arm: str, base_cell: str, base_arm: str) -> str:
    """Both arms' final rewards, over the seeds that both have: arms have different numbers of them."""
    runs, base = (found.get(cell, {}).get(arm, {}), found.get(base_cell, {}).get(base_arm, {}))
    seeds = sorted(runs.keys() & base.keys())
    if not seeds:
        return ""
    return ", ".join(f"{100 * _mean([of[seed].values['final_reward'] for seed in seeds]):.1f}" for of in (runs, base))


def _gain(found: results.Results, cell: str, arm: str, base_arm: str) -> str:
    pair = paired(found, cell, arm, cell, base_arm)
    return "" if pair is None else pair.text()


def _against_paper(found: results.Results) -> List[str]:
    lines = [
        "Averages of the paper are accuracies in percent of Qwen3-8B-Base on four sets of mathematics "
        "(its tables main, trick, staleness, noclip and ablation_topk); ours are final rewards in percent, and "
        "differences in thousandths as above. Only signs can be compared.",
        "",
        "**Rules in one table** (the paper's tab:trick; cell `same`):",
        "",
        "| rule | paper | paper, less GRPO | here: rule, GRPO on the same seeds | here, less GRPO |",
        "|---|---|---|---|---|",
    ]
    for arm, average in paper.TRICKS.items():
        here = _here(found, "same", arm) if arm == "grpo" else _beside(found, "same", arm, "same", "grpo")
        gain = "" if arm == "grpo" else _gain(found, "same", arm, "grpo")
        lines.append(f"| {comparisons.name(arm)} | {average:.2f} | {average - paper.TRICKS['grpo']:+.2f} | "
                     f"{here} | {gain} |")
    lines += ["", "**SIS as a plug-in** (tab:main; cell `same`):", "",
              "| algorithm | paper: alone, with SIS | paper: gain | here: alone, with SIS | here: gain |",
              "|---|---|---|---|---|"]
    for algorithm, (alone, with_sis) in paper.MAIN.items():
        lines.append(f"| {comparisons.name(algorithm)} | {alone:.2f}, {with_sis:.2f} | {with_sis - alone:+.2f} | "
                     f"{_here(found, 'same', algorithm)}, {_here(found, 'same', algorithm + '+sampled')} | "
                     f"{_gain(found, 'same', algorithm + '+sampled', algorithm)} |")
    lines += ["", "**Staleness** (tab:staleness; cells `N4`, `N8`, and `same` with 16 updates per rollout):", "",
              "| N | algorithm | paper: alone, with SIS | paper: gain | here: alone, with SIS | here: gain |",
              "|---|---|---|---|---|---|"]
    for (updates, algorithm), (alone, with_sis) in paper.STALENESS.items():
        cell = "same" if updates == 16 else f"N{updates}"
        lines.append(f"| {updates} | {comparisons.name(algorithm)} | {alone:.2f}, {with_sis:.2f} | "
                     f"{with_sis - alone:+.2f} | {_here(found, cell, algorithm)}, "
                     f"{_here(found, cell, algorithm + '+sampled')} | "
                     f"{_gain(found, cell, algorithm + '+sampled', algorithm)} |")
    lines += ["", "**Without the clip** (tab:noclip; cell `same`; `unclipped` leaves gradient norms alone as well):", "",
              "| rule | paper | same: rule, GRPO on the same seeds | less GRPO | unclipped: rule, GRPO | less GRPO |",
              "|---|---|---|---|---|---|"]
    for arm, average in paper.NO_CLIP.items():
        cells = [
            _here(found, cell, arm) + " | " if arm == "grpo"
            else _beside(found, cell, arm, cell, "grpo") + " | " + _gain(found, cell, arm, "grpo")
            for cell in ("same", "unclipped")
        ]
        lines.append(f"| {comparisons.name(arm)} | {average:.2f} | {' | '.join(cells)} |")
    theirs = ", ".join(f"{average:.2f} at K = {k}" for k, average in paper.TOP_K.items())
    lines += ["", f"**K** (tab:ablation_topk, GRPO with SIS; the paper: {theirs}). Here, of a vocabulary of 19:", "",
              "| K | final reward: this K, K = 10 on the same seeds | less K = 10 |", "|---|---|---|"]
    for k, cell in ((3, "K3"), (10, "same"), (19, "K19")):
        pair = None if cell == "same" else paired(found, cell, "grpo+sampled", "same", "grpo+sampled")
        both = _here(found, cell, "grpo+sampled") if pair is None else _beside(
            found, cell, "grpo+sampled", "same", "grpo+sampled")
        lines.append(f"| {k} | {both} | {'' if pair is None else pair.text()} |")
    return lines


def _forests(plan: design.Design, found: results.Results, folder: pathlib.Path) -> None:
    main: List[figures.Row] = []
    others: List[figures.Row] = []
    for cell, arm, base_cell, base_arm in comparisons.all_of(plan):
        difference = paired(found, cell, arm, base_cell, base_arm)
        if difference is None:
            continue
        where = base_cell + ": " if base_cell != cell else ""
        label = f"{cell}: {comparisons.name(arm)} − {where}{comparisons.name(base_arm)}"
        main_arm = arm in ("grpo", "grpo+sampled", "grpo+expected", "soft_acceptance+sampled")
        (main if main_arm else others).append((label, arm, difference))
    figures.forest(main, folder / "forest.svg")
    figures.forest(others, folder / "forest_others.svg")


_CURVES = ("same", "int5", "int4", "e5m2", "router0.5", "lag64", "rare", "rate1e-3", "unclipped5e-4")


def _settings(plan: design.Design) -> List[str]:
    lines = ["| cell | settings |", "|---|---|"]
    for cell in plan.cells.values():
        lines.append(f"| {cell.name} | {', '.join(f'{key} {value}' for key, value in cell.settings.items())} |")
    return lines


def write(cells: pathlib.Path, results_path: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes study.md into the folder, and pictures into its folder study."""
    plan = design.read(cells)
    found = results.read(results_path)
    made = sum(len(runs) for arms in found.values() for runs in arms.values())
    pictures = folder / "study"
    pictures.mkdir(parents=True, exist_ok=True)
    _forests(plan, found, pictures)
    curves = figures.of_rollouts(found, _CURVES, ("grpo", "grpo+sampled", "soft_acceptance+sampled"))
    figures.curves(curves, 3, pictures / "curves.svg")
    state = f"All {plan.runs} runs of the design are in." if made == plan.runs else (
        f"**Not complete: {made} of {plan.runs} runs.** Nothing below may be quoted before all are in.")
    parts: List[Tuple[str, List[str]]] = [
        ("", [
            "# Does it help? A study in miniature",
            "",
            "Written by `tools/study` from [the results](study/results.txt); don't edit it. The design, with all cells, "
            "seeds and tests, is [client/study/cells.txt](../client/study/cells.txt). It was committed before the first "
            f"of its runs. {state}",
            "",
            "A transformer of width 64 with two layers learns hexadecimal addition by reinforcement (one cell: running "
            "sums). Decisions and coefficients come from the service's own kernels; a test replays runs through a "
            "server and gets the same bits. **It is a miniature.** It shows what the rules do in a small model, in "
            "seconds, with enough seeds to tell; whether a large language model behaves so it can't show. "
            "[study_language_model.md](study_language_model.md) asks a small one.",
            "",
            "Differences are in thousandths of the final reward (the share of right answers to 2048 held-out problems), "
            "means over pairs of runs with the same seed, ± half of the 95% interval by Student's t. An asterisk marks "
            "an interval without 0.",
        ]),
        ("The comparisons that were fixed beforehand", [
            "The fourth column has intervals that hold for all of these together with 95% (Bonferroni); the last column "
            "follows from it.", "", *_primary(plan, found)]),
        ("Your situation, use this", [
            "\"Higher\" and \"lower\" count cells whose single 95% interval lies above or below 0. A rule is named if it "
            "is higher in at least half of the cells and lower in none. Only what the table above holds was fixed "
            "beforehand; the rest is exploratory, and among so many intervals some miss by chance.",
            "", *advice.table(found),
            "", "Where another forward pass of the trainer is affordable:", "", *advice.recomputing(found)]),
        ("All comparisons", [
            "![differences of GRPO's arms and soft acceptance, in every cell](study/forest.svg)", "",
            "![differences of all other arms](study/forest_others.svg)"]),
        ("Learning curves", [
            "Mean rewards of the rollouts, as the engine generated them; bands are standard errors over seeds.", "",
            "![learning curves](study/curves.svg)"]),
        ("Collapses", [
            "Runs whose last twelfth is below 0.7 of their best one. Cells without any are left out here.", "",
            *_collapses(plan, found)]),
        ("Beside the paper", _against_paper(found)),
        ("All cells", [
            "*Less* says what an arm is compared with: a correction with the same algorithm without it, another "
            "algorithm with GRPO, GRPO with recomputed log-probs with GRPO on the engine's, other sets and encodings "
            "with the cell `same`. Arms have different numbers of seeds: *final* is over an arm's own, a difference "
            "over those that both have. Three columns of differences: of the final reward, of the mean reward of all "
            "rollouts, of the final greedy reward. *Accepted*: the share of tokens that the test accepts, whether the "
            "arm uses it or not. D and D_SIS in nats per response, of the arm's own weights. *No gradient*: of the "
            "tokens with an advantage.", "", *_all_cells(plan, found)]),
        ("Settings", [
            "What is not named is: 64 prompts with 8 responses, 16 updates and 60 rollouts, learning rate 3e-4, "
            "gradient norms clipped to 1, an engine with the trainer's weights, K = 10, float32. Starts are described "
            "in the design.", "", *_settings(plan)]),
    ]
    text = "\n\n".join((f"## {title}\n\n" if title else "") + "\n".join(lines) for title, lines in parts)
    (folder / "study.md").write_text(text + "\n")


if __name__ == "__main__":
    defaults = ("client/study/cells.txt", "docs/study/results.txt", "docs")
    given = sys.argv[1:]
    write(*(pathlib.Path(path) for path in (*given, *defaults[len(given):])))
