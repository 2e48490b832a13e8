"""How arms are called, and which is compared with which."""

from typing import Iterator, Tuple

from client.study.runs.design import Cell, Design

_CORRECTIONS = {
    "sampled": "SIS",
    "expected": "SIS, EXPECTED",
    "positive": "SIS for A > 0",
    "random": "random acceptance",
    "tis": "TIS",
    "tis2": "TIS to 2",
    "tis3": "TIS to 3",
    "sequence_mask3": "TRL's sequence mask",
    "without_sets": "min(w, 1/w) for a",
}
_ALGORITHMS = {
    "importance_sampling": "no clip",
    "no_correction": "w = 1, no clip",
    "grpo": "GRPO",
    "grpo_epsilon_0.4": "GRPO, epsilon 0.4",
    "grpo_dual_clip": "GRPO, dual clip 2",
    # Of the demonstration; in the study a setting of cells.
    "grpo_recomputed": "GRPO recomputed",
    "dapo": "DAPO",
    "gspo": "GSPO",
    "cispo": "CISPO",
    "tis": "TIS",
    "ice_pop": "IcePop",
    "dppo_top_k": "DPPO top-K",
    "soft_acceptance": "soft acceptance",
    "damped_truncation": "damped truncation",
}
_WHOLE = {
    "soft_acceptance+sampled": "soft acceptance",
    "soft_acceptance+expected": "soft acceptance, EXPECTED",
    "soft_acceptance": "soft acceptance on w",
    # With min(w, 1/w) in the place of a.
    "damped_truncation+without_sets": "damped truncation without sets",
}


def name(arm: str) -> str:
    if arm in _WHOLE:
        return _WHOLE[arm]
    algorithm, *corrections = arm.split("+")
    return " + ".join([_ALGORITHMS[algorithm], *(_CORRECTIONS[word] for word in corrections)])


def named(cell: str, arm: str, beside: str) -> str:
    """The arm, with its cell if that isn't `beside`."""
    return (f"{cell}: " if cell != beside else "") + name(arm)


def base(cell: Cell, arm: str) -> Tuple[str, str]:
    """Cell and arm that this arm is compared with. An arm with a correction: the same without.
    Another algorithm: GRPO. Where a cell has neither, its settings are what is tried: the same arm
    of the cell `same`. GRPO with recomputed log-probs: GRPO with the engine's."""
    algorithm, _, correction = arm.partition("+")
    wanted = algorithm if correction and not arm.startswith("soft_acceptance") else "grpo"
    if wanted in cell.arms and wanted != arm:
        return cell.name, wanted
    if cell.name.endswith("_recomputed"):
        return cell.name[: -len("_recomputed")], arm
    return "same", arm


def all_of(design: Design) -> Iterator[Tuple[str, str, str, str]]:
    """Cell and arm, less cell and arm. Without GRPO where it is what others are compared with."""
    for cell in design.cells.values():
        for arm in cell.arms:
            if arm != "grpo" or cell.name.endswith("_recomputed"):
                yield (cell.name, arm, *base(cell, arm))
