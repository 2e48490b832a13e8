"""The tables that the reports of the studies and of the demonstrations have."""

from typing import Callable, Dict, Iterable, List, Sequence, Tuple

from client.study.report import comparisons
from client.study.report.intervals import paired
from client.study.runs.design import Cell, Design
from client.study.runs.results import ByArm, Outcome

# Headings and rows: what table and tab_separated write.
Rows = Tuple[Sequence[str], Sequence[Sequence[str]]]


def table(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Lines of Markdown."""
    head, *body = ["| " + " | ".join(row) + " |" for row in ([*headings], *rows)]
    return "\n".join([head, "|---" * (head.count(" | ") + 1) + "|", *body])


def tab_separated(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in ([*headings], *rows))


def mean(runs: Iterable[Outcome], field: str) -> float:
    values = [run.values[field] for run in runs]
    return sum(values) / len(values)


def by_arm(
    plan: Design, found: ByArm, headings: Iterable[str],
    texts: Callable[[Cell, str, List[Outcome]], Iterable[str]],
) -> Rows:  # fmt: skip
    """A row for every arm of every cell that has runs: texts(cell, arm, these)."""
    rows = [
        [cell.name, comparisons.name(arm), *texts(cell, arm, [*found[cell.name][arm].values()])]
        for cell in plan.cells.values()
        for arm in cell.arms
        if found.get(cell.name, {}).get(arm)
    ]
    return ("cell", "arm", *headings), rows


def measured(plan: Design, found: ByArm, fields: Dict[str, Tuple[str, str]]) -> Rows:
    """Means over the runs of every arm. fields: name -> heading, and how it is written."""
    return by_arm(
        plan, found, [heading for heading, _ in fields.values()],
        lambda cell, arm, runs: [
            format(mean(runs, name), form) for name, (_, form) in fields.items()
        ],
    )  # fmt: skip


def differences(
    found: ByArm, cell: str, arm: str, base: Tuple[str, str], fields: Iterable[str]
) -> List[str]:
    """Of cell and arm to the base, by field; blank where it is the same, or no seed has both."""
    pairs = [
        None if base == (cell, arm) else paired(found, cell, arm, *base, field) for field in fields
    ]
    return ["" if pair is None else pair.text() for pair in pairs]


def primary(plan: Design, found: ByArm, field: str = "final_reward") -> Rows:
    """The comparisons that were fixed beforehand."""
    together = 1 - 0.05 / len(plan.primary)
    rows = []
    for cell, arm, *base in plan.primary:
        single = paired(found, cell, arm, *base, field)
        joint = paired(found, cell, arm, *base, field, together)
        if single is not None and joint is not None:
            said = f"{cell}: {comparisons.name(arm)} less {comparisons.named(*base, cell)}"
            rows.append([said, str(single.pairs), single.text(), joint.text(), joint.verdict(plan.margin)])
    return ("comparison", "pairs", "difference", "all of them together", "so the first is"), rows
