"""The report's pictures: SVG with text as text, the same bytes for the same results."""

import dataclasses
import pathlib
from typing import Dict, List, Sequence, Tuple

import matplotlib
import matplotlib.colors
import numpy as np
from matplotlib.figure import Figure

from client.study.report import comparisons
from client.study.report.intervals import Difference
from client.study.report.results import Results

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sis",
    "font.size": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "legend.frameon": False,
}
_OTHER = "#7a5195"
_COLORS = {
    "grpo": "#52514e",
    "grpo+sampled": "#2a78d6",
    "grpo+expected": "#4aa36a",
    "soft_acceptance+sampled": "#d4551f",
}

# What a line of a forest plot says, and its interval.
Row = Tuple[str, str, Difference]


def _save(figure: Figure, path: pathlib.Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
    # matplotlib leaves blanks at the ends of lines.
    path.write_text("".join(line.rstrip() + "\n" for line in path.read_text().splitlines()))


def forest(rows: Sequence[Row], path: pathlib.Path) -> None:
    """One line per row: label, arm (its colour), difference."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8, 0.9 + 0.19 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        lines = -np.arange(len(rows))
        means = 1000 * np.array([difference.mean for _, _, difference in rows])
        halves = 1000 * np.nan_to_num([difference.half for _, _, difference in rows])
        colors = [
            (_COLORS.get(arm, _OTHER), 1.0 if difference.sign else 0.5) for _, arm, difference in rows
        ]
        rgba = [matplotlib.colors.to_rgba(color, alpha) for color, alpha in colors]
        axes.hlines(lines, means - halves, means + halves, colors=rgba, linewidth=1.4)
        axes.scatter(means, lines, c=rgba, s=12)
        axes.axvline(0, color="#8f8e88", linewidth=1)
        axes.set_yticks(lines, [label for label, _, _ in rows])
        axes.set_ylim(-len(rows) + 0.3, 0.7)
        figure.supxlabel("difference of the final reward, thousandths; faint: 0 is in the 95% interval", fontsize=9)
        axes.grid(axis="x", color="#e4e3df")
        axes.set_axisbelow(True)
        _save(figure, path)


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    # Per cent of a run.
    x: np.ndarray
    # Arm -> [runs, points].
    curves: Dict[str, np.ndarray]


def curves(panels: Sequence[Panel], columns: int, path: pathlib.Path) -> None:
    """Means over runs, and their standard errors as bands."""
    rows = max((len(panels) + columns - 1) // columns, 1)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 2.3 * rows + 0.4), layout="constrained")
        there: List = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, panel in zip(there, panels):
            for arm, values in panel.curves.items():
                mean = values.mean(axis=0)
                error = values.std(axis=0) / np.sqrt(len(values))
                color = _COLORS.get(arm, _OTHER)
                axes.plot(panel.x, mean, color=color, linewidth=1.3, label=comparisons.name(arm))
                axes.fill_between(panel.x, mean - error, mean + error, color=color, alpha=0.18, linewidth=0)
            axes.set_title(panel.title, fontsize=9, loc="left")
            axes.set_ylim(bottom=0)
            axes.grid(color="#e4e3df")
        for axes in there[len(panels):]:
            axes.set_axis_off()
        for axes in there[: len(panels)][-columns:]:
            axes.set_xlabel("% of the run")
        if panels:
            there[0].legend(fontsize=8)
        _save(figure, path)


def of_rollouts(results: Results, cells: Sequence[str], arms: Sequence[str]) -> List[Panel]:
    """Of each cell that has results: the mean rewards of its rollouts."""
    panels = []
    for cell in cells:
        runs = {arm: list(results[cell][arm].values()) for arm in arms if results.get(cell, {}).get(arm)}
        if runs:
            made = {arm: np.array([run.curve for run in of]) for arm, of in runs.items()}
            points = len(next(iter(made.values()))[0])
            panels.append(Panel(cell, (np.arange(points) + 0.5) / points * 100, made))
    return panels
