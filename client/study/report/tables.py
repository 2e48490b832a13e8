"""The tables that the reports of both studies and of the demonstrations have."""

from typing import Callable, Dict, Iterable, List, Sequence, Tuple

from client.study.report import comparisons
from client.study.report.intervals import paired
from client.study.runs.design import Design
from client.study.runs.results import ByArm, Outcome


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
    texts: Callable[[List[Outcome]], Iterable[str]],
) -> str:  # fmt: skip
    """A row for every arm of every cell: texts(its runs)."""
    rows = [
        [cell.name, comparisons.name(arm), *texts(list(found[cell.name][arm].values()))]
        for cell in plan.cells.values()
        for arm in cell.arms
    ]
    return table(("cell", "arm", *headings), rows)


def measured(plan: Design, found: ByArm, fields: Dict[str, Tuple[str, str]]) -> str:
    """Means over the runs of every arm. fields: name -> heading, and how it is written."""
    return by_arm(
        plan, found, [heading for heading, _ in fields.values()],
        lambda runs: [format(mean(runs, name), form) for name, (_, form) in fields.items()],
    )  # fmt: skip


def primary(plan: Design, found: ByArm, field: str = "final_reward") -> str:
    """The comparisons that were fixed beforehand."""
    together = 1 - 0.05 / len(plan.primary)
    rows = []
    for cell, arm, *base in plan.primary:
        single = paired(found, cell, arm, *base, field)
        joint = paired(found, cell, arm, *base, field, together)
        if single is not None and joint is not None:
            said = f"{cell}: {comparisons.name(arm)} less {comparisons.named(*base, cell)}"
            rows.append([said, str(single.pairs), single.text(), joint.text(), joint.verdict(plan.margin)])
    headings = ("comparison", "pairs", "difference", "all of them together", "so the first is")
    return table(headings, rows)
