"""Line charts as inline SVG, drawn by matplotlib and coloured by the page, in light or dark
mode."""

import dataclasses
import html
import io
import math
import re
from typing import Optional, Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

# Of one chart among several side by side, and of one that stands alone.
NARROW, WIDE = 480, 960
_HEIGHT = 300
# matplotlib draws with colours only: each stands for a CSS variable.
_VARIABLES = {
    name: f"#{number:06x}"
    for number, name in enumerate(("first", "second", "third", "fourth", "muted", "grid", "axis", "ink"), start=1)
}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sis",
    "font.size": 12,
    "text.color": _VARIABLES["muted"],
    "axes.labelcolor": _VARIABLES["muted"],
    "axes.labelsize": 12,
    "axes.edgecolor": _VARIABLES["axis"],
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _VARIABLES["grid"],
    "xtick.color": _VARIABLES["muted"],
    "ytick.color": _VARIABLES["muted"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
}


@dataclasses.dataclass(frozen=True)
class Line:
    name: str
    # A CSS variable of the page.
    color: str
    x: Sequence[float]
    y: Sequence[float]
    # A band around it.
    low: Optional[Sequence[float]] = None
    high: Optional[Sequence[float]] = None
    # As an addition to another line, beside which the legend leaves it out.
    dashed: bool = False


def panel(title, x_title, y_title, lines, form="{:g}", log=False, y_range=None, x_ticks=None, width=NARROW):
    """One chart with axes and legend, as an <svg>. `form` writes a value of y in its tooltip.

    log: a logarithmic y axis, for positive values. y_range: else from the data.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width / 72, _HEIGHT / 72), layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot(facecolor="none", xlabel=x_title, ylabel=y_title)
        for line in lines:
            color = _VARIABLES[line.color]
            if line.low is not None:
                axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.18, linewidth=0)
            axes.plot(line.x, line.y, "--" if line.dashed else "-", color=color, linewidth=2, label=None if line.dashed else line.name)
            # Invisible circles, whose ids _inline makes tooltips of.
            for x, y in zip(line.x, line.y):
                tooltip = f"{line.name}, {x_title} {x:g}: {form.format(y)}"
                axes.plot([x], [y], "o", color=color, alpha=0, gid=f"point: {tooltip}")
        if log:
            axes.set_yscale("log")
            axes.minorticks_off()
        elif form.endswith("%}"):
            axes.yaxis.set_major_formatter(PercentFormatter(1))
        if y_range:
            axes.set_ylim(y_range)
        if x_ticks is not None:
            axes.set_xticks(x_ticks)
        axes.margins(x=0.02)
        named = sum(not line.dashed for line in lines)
        columns = named if width == WIDE else min(named, 2)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=columns, borderaxespad=0)
        return _inline(figure, title, width, _HEIGHT)


@dataclasses.dataclass(frozen=True)
class Interval:
    """A line of a forest plot."""

    name: str
    color: str
    mean: float
    # NaN: unknown.
    half: float


def forest(title, x_title, groups, form="{:+.3f}"):
    """Intervals one below the other, beside a line at 0. groups: (heading, [Interval])."""
    rows = sum(1 + len(intervals) for _, intervals in groups)
    height = 60 + 26 * rows
    with matplotlib.rc_context({**_STYLE, "axes.grid.axis": "x"}):
        figure = Figure(figsize=(WIDE / 72, height / 72), layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot(facecolor="none", xlabel=x_title)
        axes.axvline(0, color=_VARIABLES["axis"], linewidth=1.5)
        labels = []
        for heading, intervals in groups:
            labels.append(heading)
            for interval in intervals:
                y = -len(labels)
                labels.append("    " + interval.name)
                color = _VARIABLES[interval.color]
                low, high = interval.mean - interval.half, interval.mean + interval.half
                if not math.isnan(interval.half):
                    axes.plot([low, high], [y, y], "-", color=color, linewidth=3)
                axes.plot([interval.mean], [y], "o", color=color, markersize=8)
                tooltip = f"{interval.name}: {form.format(interval.mean)}, {form.format(low)} to {form.format(high)}"
                axes.plot([interval.mean], [y], "o", color=color, alpha=0, markersize=14, gid=f"point: {tooltip}")
        axes.set_yticks([-row for row in range(len(labels))], labels, ha="left")
        for label, tick in zip(labels, axes.get_yticklabels()):
            if not label.startswith(" "):
                tick.set_color(_VARIABLES["ink"])
        axes.tick_params(axis="y", pad=250)
        axes.set_ylim(-len(labels) + 0.4, 0.6)
        return _inline(figure, title, WIDE, height)


def _inline(figure, title, width, height):
    """What stands in a page: without prologue, in the width of its place, coloured by the page,
    with tooltips."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = buffer.getvalue()
    # Small screens scroll: smaller text could not be read.
    svg = (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {width} {height}" '
        f'style="min-width: {0.7 * width:.0f}px" role="img" aria-label="{html.escape(title)}">'
        + re.sub(r".*?<svg [^>]*>", "", svg, count=1, flags=re.DOTALL)
    )
    for name, color in _VARIABLES.items():
        svg = svg.replace(color, f"var(--{name})")
    return re.sub(r'<g id="point: ([^"]*)">', r'<g class="point"><title>\1</title>', svg)


def figure(name, heading, caption, panels):
    """A <figure> of one or two charts: panels are (subtitle, svg)."""
    charts = "".join(
        f'<div class="panel">{f"<h3>{html.escape(subtitle)}</h3>" if subtitle else ""}{svg}</div>'
        for subtitle, svg in panels
    )
    return (
        f'<figure id="{name}"><h2>{html.escape(heading)}</h2><div class="panels">{charts}</div>'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )
