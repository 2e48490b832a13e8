"""The report of a demonstration: a table on the terminal, and one HTML file with it and with plots."""

import html
import io
import pathlib
import re
import string
from typing import Dict, List, NamedTuple, Sequence, Tuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

_PAGE = string.Template((pathlib.Path(__file__).with_name("report.template")).read_text(encoding="utf-8"))
_COLORS = ("#52514e", "#2a78d6", "#d4551f", "#1f8a4c")
# Curve, title, and the curve that is drawn dashed in the same plot.
_PLOTS = (("reward", "Reward", ""), ("accept_rate", "Accept rate", ""), ("d", "D, and D_SIS dashed", "d_sis"))


class Curves(NamedTuple):
    """Measurements of one training, per rollout. D and D_SIS are in nats per token."""

    reward: Sequence[float]
    accept_rate: Sequence[float]
    d: Sequence[float]
    d_sis: Sequence[float]


# Name of an arm -> seed -> its curves, all equally long.
Found = Dict[str, Dict[int, Curves]]


def table(found: Found) -> List[Tuple[str, ...]]:
    """Returns rows of texts, the first of them the headings: means over the rollouts and seeds of each arm."""
    rows: List[Tuple[str, ...]] = [
        ("arm", "reward of the first fifth", "of the last fifth", "by seed", "accept rate", "D, nats per token", "D_SIS")
    ]
    for arm, runs in found.items():
        # [seeds, curves, rollouts].
        values = np.array([runs[seed] for seed in sorted(runs)])
        fifth = max(1, values.shape[2] // 5)
        last = values[:, 0, -fifth:].mean(axis=1)
        accept_rate, d, d_sis = values[:, 1:].mean(axis=(0, 2))
        rows.append((
            arm, f"{values[:, 0, :fifth].mean():.3f}", f"{last.mean():.3f}", ", ".join(f"{one:.3f}" for one in last),
            f"{accept_rate:.1%}", f"{d:.3f}", f"{d_sis:.3f}",
        ))  # fmt: skip
    return rows


def plots(found: Found) -> str:
    """Returns SVG: means over seeds, and each seed as a thin line."""
    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 9, "legend.frameon": False}):
        figure = Figure(figsize=(11, 3.4), layout="constrained")
        for axes, (name, title, dashed) in zip(figure.subplots(1, len(_PLOTS)), _PLOTS):
            for (arm, runs), color in zip(found.items(), _COLORS):
                for curve, style in ((name, "-"), (dashed, "--")):
                    if curve:
                        values = np.array([getattr(run, curve) for run in runs.values()])
                        axes.plot(values.T, style, color=color, linewidth=0.6, alpha=0.4)
                        axes.plot(values.mean(axis=0), style, color=color, label=arm if style == "-" else None)
            axes.set_title(title, loc="left", fontsize=9)
            axes.set_xlabel("rollout")
            axes.set_ylim(0)
            axes.grid(color="#e4e3df")
        figure.axes[0].legend()
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"^.*?(?=<svg )", "", drawn.getvalue(), flags=re.DOTALL)


def say_server(server, progress) -> None:
    progress.say(f"Server ready: gRPC {server.address}")
    progress.say("Look on while it trains, in a browser or in a terminal:")
    for command in ("web --open", "top"):
        progress.say(f"  bazel-bin/client/python/sisctl {command} --server={server.address}")


def write(folder: pathlib.Path, title: str, setting: str, found: Found) -> None:
    """Prints the table and writes report.html into `folder`."""
    rows = table(found)
    widths = [max(map(len, column)) for column in zip(*rows)]
    print("")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    lines = (
        "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in row) + "</tr>"
        for kind, row in zip(("th", *["td"] * len(rows)), rows)
    )
    page = _PAGE.substitute(
        title=html.escape(title),
        setting=html.escape(setting),
        table="\n".join(lines),
        plots=plots(found),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.html").write_text(page, encoding="utf-8")
    print("", f"Report with plots: {folder / 'report.html'}", sep="\n")
