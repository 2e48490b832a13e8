"""The report of a demonstration: one HTML file that needs nothing but itself."""

import html
import pathlib
import re
import string
import urllib.request

import numpy as np

from client.study.report import comparisons, figures, tables
from client.study.report.intervals import paired
from client.study.runs.results import Outcome

_FOLDER = pathlib.Path(__file__).parent
# Pictures are drawn in colours; the page has a variable for each, for light and dark screens.
_VARIABLES = {
    "#ffffff": "surface",
    "#000000": "axis",
    figures.ZERO: "axis",
    figures.GRID: "grid",
    figures.COLORS["grpo"]: "grpo",
    figures.COLORS["grpo+sampled"]: "sis",
    figures.COLORS["soft_acceptance+sampled"]: "soft-acceptance",
    figures.OTHER: "other",
}
# Curve, and one that is drawn dashed -> heading, what is on the horizontal axis and where that
# begins, the form of values, the top of the axis, and what is said of it.
_FIGURES = {
    ("reward", ""): (
        "Reward", "rollout", 0, "{:.2f}", None,
        "The share of a rollout's responses that are right, as the engine sampled them at "
        "temperature 1.",
    ),
    ("accept_rate", ""): (
        "Accept rate", "rollout", 0, "{:.0%}", 1,
        "Of the tokens of a rollout, over the updates it was used for, whether the arm used the "
        "decisions or not.",
    ),
    ("d", "d_sis"): (
        "D against D_SIS", "rollout", 0, "{:.3g}", None,
        "Log-importance deviation in nats per token: D as lines, and dashed D_SIS, what the "
        "decisions leave of it. GRPO alone did not use the decisions. An accepted token has ratio "
        "1, which the clip never holds back, so arms need not move equally far from the behaviour "
        "policy.",
    ),
    ("expected_acceptance", "residual_mass"): (
        "Accept rate and residual mass against k", "k, slots used", 1, "{:.1%}", 1,
        "Of the stalest update of every rollout, had only the k most probable tokens been "
        "recorded: the accept rate to be expected, and dashed the current policy's mass outside of "
        "them. Fewer slots give a smaller envelope, so more tokens may pass, but they leave more "
        "of the current policy out.",
    ),
    ("by_staleness", ""): (
        "Accept rate against staleness", "updates since the rollout", 0, "{:.0%}", 1,
        "Over all rollouts, by how many updates the current policy is ahead of the behaviour "
        "policy.",
    ),
}  # fmt: skip
_QUANTITIES = {
    "first_reward": ("reward of the first rollout", ".3f"),
    "mean_reward": ("of all", ".3f"),
    "last_reward": ("of the last quarter", ".3f"),
    "accept_rate": ("accepted", ".1%"),
    "d": ("D, nats per token", ".3f"),
    "first_d": ("in the first update of a rollout", ".3f"),
    "d_sis": ("D_SIS", ".3f"),
    "residual_mass": ("residual mass", ".2%"),
}
_INTERVALS = (
    "Differences of the mean reward in thousandths, over pairs of runs with the same seed, ± half "
    "of the 95% interval by Student's t; the last but one column has intervals that hold for all "
    "of them together. The study (docs/results.md) has another outcome, the answers of the trainer's "
    "own weights after twice as many updates, and many more seeds and cells."
)
_SHOWN_METRICS = (
    "sis_tokens_total", "sis_deviation_nats_total", "sis_modified_deviation_nats_total",
    "sis_ingest_positions_total",
)  # fmt: skip


def outcome(rewards, updates, **curves):
    """Of one run. rewards: of every rollout. updates: accept_rate, d, d_sis and residual_mass ->
    [rollouts, updates]."""
    rewards = np.array(rewards)
    updates = {name: np.array(of) for name, of in updates.items()}
    values = {
        "first_reward": rewards[0],
        "mean_reward": rewards.mean(),
        "last_reward": rewards[-max(1, len(rewards) // 4) :].mean(),
        **{name: of.mean() for name, of in updates.items()},
        "first_d": updates["d"][:, 0].mean(),
    }
    measured = {name: updates[name].mean(axis=1) for name in ("accept_rate", "d", "d_sis")}
    by_staleness = updates["accept_rate"].mean(axis=0)
    return Outcome(
        values, rewards, {"reward": rewards, **measured, "by_staleness": by_staleness, **curves}
    )


def counted(admin_address, run_id):
    """What a report shows of a run: some lines of /metrics that are not 0, in order."""
    with urllib.request.urlopen(f"http://{admin_address}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sorted(
        line
        for line in lines
        if line.startswith(_SHOWN_METRICS) and f'run="{run_id}"' in line and not line.endswith(" 0")
    )


def say_server(server, progress):
    progress.say(f"Server ready: gRPC {server.address}, page http://{server.admin_address}/")
    progress.say(f"Look on: bazel-bin/client/cli/sisctl --server={server.address} top")


def write(folder, name, fields, plan, found, metrics, beside=None):
    """Writes report.html into the folder, and prints what it says in words.

    name: of the template that says what was done, with `fields` in it. beside: cell and arm -> the
    cell in whose pictures it stands, and what it is called there.
    """
    heading, _, setting = (_FOLDER / f"{name}.template").read_text().partition("\n\n")
    summary = tables.measured(plan, found, _QUANTITIES)
    sections = [("Summary", _table(*summary), "Means over seeds.")]
    said = [*metrics, "", tables.table(*summary)]
    if plan.primary:
        rows = [
            (f"{cell}: {comparisons.name(arm)} − {comparisons.named(*base, cell)}", arm,
             paired(found, cell, arm, *base, "mean_reward"))
            for cell, arm, *base in plan.primary
        ]  # fmt: skip
        forest = _inline(figures.forest(rows, "mean reward"), "Differences")
        verdicts = tables.primary(plan, found, "mean_reward")
        sections.insert(0, ("What the intervals say", _table(*verdicts) + forest, _INTERVALS))
        said += ["", tables.table(*verdicts)]
    panels = {cell: dict(arms) for cell, arms in found.items()}
    for (cell, arm), (other, called) in (beside or {}).items():
        panels[other][called] = panels.pop(cell)[arm]
    for (curve, dashed), (title, x_title, first, form, top, caption) in _FIGURES.items():
        drawn = [
            figures.Panel(cell, *_curves(arms, curve, first), _curves(arms, dashed, first)[1])
            for cell, arms in panels.items()
        ]
        if drawn[0].curves:
            svg = figures.curves(drawn, len(drawn), x_title, top, form)
            sections.append((title, _inline(svg, title), caption))
    counts = "<pre>" + html.escape("\n".join(metrics)) + "</pre>"
    sections.append(("What the server counted", counts, "Some lines of its /metrics."))
    page = string.Template((_FOLDER / "page.html").read_text()).substitute(
        heading=html.escape(heading),
        setting=html.escape(setting.format(**fields)),
        sections="\n".join(
            f"<figure><h2>{html.escape(title)}</h2>{content}"
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
            for title, content, caption in sections
        ),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.html").write_text(page)
    print("", *said, "", f"Report: {folder / 'report.html'}", sep="\n")


def _curves(arms, name, first):
    """Where the points lie, and by arm [runs, points]; none if there is no such curve."""
    made = {
        arm: np.array([run.curves[name] for run in runs.values()])
        for arm, runs in arms.items()
        if all(name in run.curves for run in runs.values())
    }
    points = next(iter(made.values())).shape[1] if made else 0
    return np.arange(points) + first, made


def _table(headings, rows):
    lines = (
        "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in row) + "</tr>"
        for kind, row in (("th", headings), *(("td", row) for row in rows))
    )
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _inline(svg, title):
    """What stands in a page: in the width of its place, coloured by the page, with tooltips."""
    svg = re.sub(r"^.*?<svg ", "<svg ", svg, flags=re.DOTALL)
    svg = re.sub(r' width="[^"]*"| height="[^"]*"', "", svg, count=2)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)
    for color, name in _VARIABLES.items():
        svg = svg.replace(color, f"var(--{name})")
    svg = re.sub(r'<g id="title: ([^"]*)">', r'<g class="point"><title>\1</title>', svg)
    return f'<div class="scroll">{svg}</div>'
