"""The results beside the paper's own numbers: averages of accuracy in percent, from its tables on
Qwen3-8B-Base, mathematics."""

from typing import Iterator, List, Tuple

from client.study.report.comparisons import name
from client.study.report.intervals import paired
from client.study.report.tables import mean, tab_separated
from client.study.runs.results import ByArm

# tab:trick, of which tab:noclip has three: arm of the study -> average. The study has no Clip-Cov.
TRICKS = {
    "no_correction": 47.26,
    "importance_sampling": 48.13,
    "grpo": 49.05,
    "dapo": 51.24,
    "gspo": 52.44,
    "cispo": 54.44,
    "dppo_top_k": 49.48,
    "importance_sampling+sampled": 51.81,
    "grpo+sampled": 52.59,
    "dapo+sampled": 55.14,
}
# tab:staleness; tab:main has those of 4: (updates per rollout, algorithm) -> (alone, with SIS).
STALENESS = {
    (4, "grpo"): (49.05, 52.59),
    (8, "grpo"): (49.14, 51.64),
    (16, "grpo"): (48.58, 51.92),
    (4, "dapo"): (51.24, 55.14),
    (8, "dapo"): (51.54, 53.41),
    (16, "dapo"): (48.81, 52.92),
    (4, "gspo"): (52.44, 53.54),
    (8, "gspo"): (50.12, 52.22),
    (16, "gspo"): (49.03, 50.19),
}
_HEADINGS = (
    "paper's table", "cell", "arm", "less", "paper: arm", "paper: less", "paper: difference",
    "here: arm", "here: less", "here: difference",
)  # fmt: skip


def _compared() -> Iterator[Tuple[str, str, str, str, float, float]]:
    """The paper's table, cell, arm, the arm it is compared with, the paper's numbers of both."""
    for table, cell, arms in (
        ("tab:trick", "same", TRICKS),
        ("tab:noclip", "unclipped", ("grpo+sampled", "importance_sampling+sampled")),
    ):
        for arm in arms:
            if arm != "grpo":
                yield table, cell, arm, "grpo", TRICKS[arm], TRICKS["grpo"]
    for (updates, algorithm), (alone, sis) in STALENESS.items():
        cell = "same" if updates == 16 else f"N{updates}"
        yield "tab:staleness", cell, algorithm + "+sampled", algorithm, sis, alone


def _here(found: ByArm, cell: str, arm: str, base: str) -> List[str]:
    """Both arms' final rewards in percent, over the seeds that both have, as arms have different
    numbers of them; and their difference."""
    pair = paired(found, cell, arm, cell, base)
    if pair is None:
        return ["", "", ""]
    runs = found[cell]
    seeds = sorted(runs[arm].keys() & runs[base].keys())
    finals = [mean([runs[of][seed] for seed in seeds], "final_reward") for of in (arm, base)]
    return [*(f"{100 * final:.1f}" for final in finals), pair.text()]


def beside(found: ByArm) -> str:
    """Tab-separated values."""
    rows = [
        [table, cell, name(arm), name(base), f"{there:.2f}", f"{base_there:.2f}",
         f"{there - base_there:+.2f}", *_here(found, cell, arm, base)]
        for table, cell, arm, base, there, base_there in _compared()
    ]  # fmt: skip
    return tab_separated(_HEADINGS, rows)
