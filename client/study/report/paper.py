"""The results beside the paper's own numbers: averages of accuracy in percent, from its tables on
Qwen3-8B-Base, mathematics."""

from typing import Dict, List

from client.study.report.comparisons import name
from client.study.report.intervals import paired
from client.study.report.tables import mean, table
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


def _final(found: ByArm, cell: str, arm: str) -> str:
    runs = found.get(cell, {}).get(arm, {})
    return f"{100 * mean(runs.values(), 'final_reward'):.1f}" if runs else ""


def _beside(found: ByArm, cell: str, arm: str, base_cell: str, base_arm: str) -> List[str]:
    """Both arms' final rewards, over the seeds that both have, as arms have different numbers of
    them; and their difference. Of an arm beside itself its own reward only."""
    if (cell, arm) == (base_cell, base_arm):
        return [_final(found, cell, arm), ""]
    pair = paired(found, cell, arm, base_cell, base_arm)
    if pair is None:
        return ["", ""]
    runs, base = found[cell][arm], found[base_cell][base_arm]
    seeds = sorted(runs.keys() & base.keys())
    finals = [100 * mean([of[seed] for seed in seeds], "final_reward") for of in (runs, base)]
    return [", ".join(f"{final:.1f}" for final in finals), pair.text()]


def _plugged_in(found: ByArm, updates: int, algorithm: str, cell: str) -> List[str]:
    alone, sis = STALENESS[updates, algorithm]
    with_sis = algorithm + "+sampled"
    here = f"{_final(found, cell, algorithm)}, {_final(found, cell, with_sis)}"
    gain = _beside(found, cell, with_sis, cell, algorithm)[1]
    return [name(algorithm), f"{alone:.2f}, {sis:.2f}", f"{sis - alone:+.2f}", here, gain]


def tables(found: ByArm) -> Dict[str, str]:
    """By the name of their place in study.template."""
    staleness = (
        "N", "algorithm", "paper: alone, with SIS", "paper: gain", "here: alone, with SIS",
        "here: gain",
    )  # fmt: skip
    rules = (
        "rule", "paper", "paper, less GRPO", "here: rule, GRPO on the same seeds",
        "here, less GRPO",
    )  # fmt: skip
    no_clip = "rule", "paper", "unclipped: rule, GRPO", "less GRPO"
    top_k = "K", "final reward: this K, K = 10 on the same seeds", "less K = 10"
    return {
        "tricks": table(rules, [
            [name(arm), f"{average:.2f}", f"{average - TRICKS['grpo']:+.2f}",
             *_beside(found, "same", arm, "same", "grpo")]
            for arm, average in TRICKS.items()
        ]),
        "staleness": table(staleness, [
            [str(n), *_plugged_in(found, n, algorithm, "same" if n == 16 else f"N{n}")]
            for n, algorithm in STALENESS
        ]),
        "no_clip": table(no_clip, [
            [name(arm), f"{TRICKS[arm]:.2f}",
             *_beside(found, "unclipped", arm, "unclipped", "grpo")]
            for arm in ("grpo", "grpo+sampled", "importance_sampling+sampled")
        ]),
        "top_k": table(top_k, [
            [k, *_beside(found, cell, "grpo+sampled", "same", "grpo+sampled")]
            for k, cell in (("3", "K3"), ("10", "same"), ("19", "K19"))
        ]),
    }  # fmt: skip
