"""The reports' pictures: SVG with text as text, the same bytes for the same results."""

import dataclasses
import io
from typing import Dict, List, Optional, Sequence, Tuple

import matplotlib
import matplotlib.colors
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from client.study.report import comparisons
from client.study.report.intervals import Difference
from client.study.runs.results import ByArm

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sis",
    "font.size": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "legend.frameon": False,
}
OTHER = "#7a5195"
ZERO, GRID = "#8f8e88", "#e4e3df"
# Of arms.
COLORS = {
    "grpo": "#52514e",
    "grpo+sampled": "#2a78d6",
    "grpo+expected": "#4aa36a",
    "soft_acceptance+sampled": "#d4551f",
}

# What a line of a forest plot says, its arm, which is its colour, and its interval.
Row = Tuple[str, str, Difference]


def forest(rows: Sequence[Row], outcome: str) -> str:
    """One line per row. outcome: whose differences they are."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8, 0.9 + 0.19 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        lines = -np.arange(len(rows))
        means = 1000 * np.array([difference.mean for _, _, difference in rows])
        halves = 1000 * np.nan_to_num([difference.half for _, _, difference in rows])
        rgba = [
            matplotlib.colors.to_rgba(COLORS.get(arm, OTHER), 1.0 if difference.sign else 0.5)
            for _, arm, difference in rows
        ]
        axes.hlines(lines, means - halves, means + halves, colors=rgba, linewidth=1.4)
        axes.scatter(means, lines, c=rgba, s=12)
        axes.axvline(0, color=ZERO, linewidth=1)
        axes.set_yticks(lines, [label for label, _, _ in rows])
        axes.set_ylim(-len(rows) + 0.3, 0.7)
        figure.supxlabel(
            f"difference of the {outcome}, thousandths; faint: 0 is in the 95% interval", fontsize=9
        )
        axes.grid(axis="x", color=GRID)
        axes.set_axisbelow(True)
        return _svg(figure)


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    x: np.ndarray
    # Arm -> [runs, points].
    curves: Dict[str, np.ndarray]
    # The same of something else: drawn dashed and without a band.
    dashed: Dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


def curves(
    panels: Sequence[Panel], columns: int, x_title: str, top: Optional[float] = None,
    page_form: str = "",
) -> str:  # fmt: skip
    """Means over runs, and their standard errors as bands.

    top: of the vertical axes, if not as the values are. page_form: for a page, how it writes
    values. Then points have titles, which it shows as tooltips, and the panels one vertical axis.
    """
    rows = max((len(panels) + columns - 1) // columns, 1)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 2.3 * rows + 0.4), layout="constrained")
        share = bool(page_form)
        there: List = list(figure.subplots(rows, columns, squeeze=False, sharey=share).flat)
        for axes, panel in zip(there, panels):
            for arm, values in panel.curves.items():
                mean = values.mean(axis=0)
                error = values.std(axis=0) / np.sqrt(len(values))
                color = COLORS.get(arm, OTHER)
                axes.plot(panel.x, mean, color=color, linewidth=1.3, label=comparisons.name(arm))
                axes.fill_between(
                    panel.x, mean - error, mean + error, color=color, alpha=0.18, linewidth=0
                )
            for arm, values in panel.dashed.items():
                color = COLORS.get(arm, OTHER)
                axes.plot(panel.x, values.mean(axis=0), "--", color=color, linewidth=1)
            for arm, values in [*panel.curves.items(), *panel.dashed.items()] if page_form else []:
                # Invisible circles, with what a page says of them.
                for x, y in zip(panel.x, values.mean(axis=0)):
                    said = f"title: {comparisons.name(arm)}, {x_title} {x:g}: {page_form.format(y)}"
                    axes.plot([x], [y], "o", color=COLORS.get(arm, OTHER), alpha=0, gid=said)
            axes.set_title(panel.title, fontsize=9, loc="left")
            if "%" in page_form:
                axes.yaxis.set_major_formatter(PercentFormatter(1))
            axes.grid(color=GRID)
        for axes in there[len(panels) :]:
            axes.set_axis_off()
        # Of what all that share an axis have drawn.
        for axes in there[: len(panels)]:
            axes.set_ylim(bottom=0, top=top)
        for axes in there[: len(panels)][-columns:]:
            axes.set_xlabel(x_title)
        if panels:
            most = max(range(len(panels)), key=lambda number: len(panels[number].curves))
            there[most].legend(fontsize=8)
        return _svg(figure)


def of_rollouts(found: ByArm, cells: Sequence[str], arms: Sequence[str]) -> List[Panel]:
    """Of each cell that has results: the mean rewards of its rollouts, by per cent of the run."""
    panels = []
    for cell in cells:
        runs = {arm: found[cell][arm] for arm in arms if found.get(cell, {}).get(arm)}
        if runs:
            made = {
                arm: np.array([run.curve for run in of.values()]) for arm, of in runs.items()
            }
            points = next(iter(made.values())).shape[1]
            panels.append(Panel(cell, (np.arange(points) + 0.5) / points * 100, made))
    return panels


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    metadata = {"Date": None, "Creator": None}
    figure.savefig(buffer, format="svg", metadata=metadata, facecolor="white")
    # matplotlib leaves blanks at the ends of lines.
    return "".join(line.rstrip() + "\n" for line in buffer.getvalue().splitlines())
