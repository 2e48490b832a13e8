"""Line charts as inline SVG, drawn by matplotlib and coloured by the page, in light or dark
mode."""

import dataclasses
import html
import io
import re
from typing import Optional, Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

# Of one chart among several side by side, and of one that stands alone.
NARROW, WIDE = 480, 960
_HEIGHT = 300
# matplotlib draws with colours only: each stands for a CSS variable.
_VARIABLES = {"first": "#000001", "second": "#000002", "muted": "#000003", "grid": "#000004", "axis": "#000005"}
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
            axes.plot(line.x, line.y, "--" if line.dashed else "-", color=color, linewidth=2, label=line.name)
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
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=len(lines), borderaxespad=0)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return _inline(buffer.getvalue(), title, width)


def _inline(svg, title, width):
    """What stands in a page: without prologue, in the width of its place, coloured by the page,
    with tooltips."""
    # Small screens scroll: smaller text could not be read.
    svg = (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {width} {_HEIGHT}" '
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
