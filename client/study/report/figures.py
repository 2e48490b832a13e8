"""The report's pictures: SVG with text as text, the same bytes for the same results."""

import pathlib
from typing import List, Sequence, Tuple

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


def curves(results: Results, cells: Sequence[str], arms: Sequence[str], path: pathlib.Path) -> None:
    """Mean rewards of the rollouts, a panel per cell: means over seeds, and the standard error as a band."""
    cells = [cell for cell in cells if cell in results]
    columns = 3
    rows = (len(cells) + columns - 1) // columns
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 2.3 * max(rows, 1) + 0.4), layout="constrained")
        panels: List = list(figure.subplots(max(rows, 1), columns, squeeze=False).flat)
        for panel, cell in zip(panels, cells):
            for arm in arms:
                runs = results[cell].get(arm, {})
                if not runs:
                    continue
                all_curves = np.array([run.curve for run in runs.values()])
                mean = all_curves.mean(axis=0)
                error = all_curves.std(axis=0) / np.sqrt(len(all_curves))
                share = (np.arange(len(mean)) + 0.5) / len(mean) * 100
                panel.plot(share, mean, color=_COLORS[arm], linewidth=1.3, label=comparisons.name(arm))
                panel.fill_between(share, mean - error, mean + error, color=_COLORS[arm], alpha=0.18, linewidth=0)
            panel.set_title(cell, fontsize=9, loc="left")
            panel.set_ylim(bottom=0)
            panel.grid(color="#e4e3df")
        for panel in panels[len(cells):]:
            panel.set_axis_off()
        for panel in panels[: len(cells)][-columns:]:
            panel.set_xlabel("% of the run")
        if cells:
            panels[0].legend(fontsize=8)
        _save(figure, path)
