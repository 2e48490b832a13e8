"""The report: one HTML file that needs nothing but itself."""

import html

import numpy as np

from client.demo import charts, task
from client.demo.arms import ARMS
from client.demo.results import table, verdict

_COLORS = ("first", "second")

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>SIS ratio service: what the demonstration measured</title>
<style>
:root {{
  color-scheme: light dark;
  --page: #f9f9f7; --surface: #fcfcfb; --ink: #0b0b0b; --muted: #52514e; --grid: #e4e3df; --axis: #8f8e88;
  --first: #2a78d6; --second: #d4551f;
}}
@media (prefers-color-scheme: dark) {{
  :root {{
    --page: #0d0d0d; --surface: #1a1a19; --ink: #ffffff; --muted: #c3c2b7; --grid: #343431; --axis: #7c7b75;
    --first: #5b9df0; --second: #ee7b48;
  }}
}}
body {{ margin: 0 auto; padding: 24px 16px 48px; max-width: 1040px; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 26px; line-height: 1.25; margin: 0 0 8px; }}
h2 {{ font-size: 18px; margin: 0; }}
h3 {{ font-size: 14px; font-weight: 600; margin: 0; color: var(--muted); }}
p {{ max-width: 70ch; }}
figure, .card {{ margin: 20px 0; padding: 16px 20px; background: var(--surface); border: 1px solid var(--grid);
  border-radius: 8px; }}
figcaption {{ color: var(--muted); font-size: 14px; max-width: 80ch; }}
.panels {{ display: flex; flex-wrap: wrap; gap: 8px 24px; margin: 8px 0; }}
.panel {{ flex: 1 1 380px; min-width: 0; overflow-x: auto; }}
.panel > svg {{ display: block; width: 100%; height: auto; }}
.point:hover use {{ fill-opacity: 0.35 !important; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 6px 20px 6px 0; text-align: left; border-bottom: 1px solid var(--grid); }}
pre {{ overflow-x: auto; font-size: 13px; margin: 8px 0 0; }}
</style>
</head>
<body>
<h1>GRPO with and without selective importance sampling</h1>
<p>{setting}</p>
<div class="card"><h2>Summary</h2><div class="scroll">{table}</div><p><strong>{verdict}</strong></p>
<p>{note}</p></div>
{figures}
<div class="card"><h2>What the server counted</h2><p>Some lines of its <code>/metrics</code> after the last run.</p>
<pre>{metrics}</pre></div>
</body>
</html>
"""


def write(results, path):
    """Writes the report to `path`."""
    settings = results.settings
    figures = [
        _accept_rate(results),
        _deviation(results),
        _reward(results),
        _top_k(results),
        _staleness(results),
    ]
    setting = (
        f"A small transformer learned to add hexadecimal numbers of {settings.digits} digits by supervision until it "
        f"solved {results.warm_up.accuracy:.0%} of the problems ({results.warm_up.steps} steps, "
        f"{results.warm_up.seconds:.0f} s). From there GRPO trained it on, once with plain importance ratios and once "
        f"with SIS, from the same weights, on the same problems: {results.rollouts} rollouts of {settings.responses} "
        f"responses, each rollout used for {settings.updates} updates in one pass. The behaviour policy's "
        f"{settings.top_k} most probable tokens of {task.VOCABULARY_SIZE} were recorded at every position. In both arms the "
        f"service decided about every token; only with SIS the trainer used what it decided."
    )
    seeds = f"{len(results.learned)} seeds" if len(results.learned) > 1 else "one seed"
    note = f"Means over {seeds}; in brackets, and as bands below, the smallest and the largest seed."
    write_page(path, setting, table(results), verdict(results), note, figures, results.metrics)


def write_page(path, setting, rows, conclusion, note, figures, metrics):
    """`setting`, `conclusion` and `note` are text. rows: of the summary, a heading first. figures: of
    charts.figure. metrics: lines."""
    page = _PAGE.format(
        setting=html.escape(setting),
        table=_table(rows),
        verdict=html.escape(conclusion),
        note=html.escape(note),
        figures="\n".join(figures),
        metrics=html.escape("\n".join(metrics)),
    )
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


def _table(rows):
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"]
    for row in body:
        lines.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>")
    return "<table>" + "".join(lines) + "</table>"


def _line(name, color, x, by_seed, dashed=False):
    """The mean over seeds; of several, with the range as a band. by_seed is [seeds, len(x)]."""
    band = {} if len(by_seed) == 1 else {"low": by_seed.min(axis=0).tolist(), "high": by_seed.max(axis=0).tolist()}
    return charts.Line(name, color, list(x), by_seed.mean(axis=0).tolist(), dashed=dashed, **band)


def _per_arm(x, values):
    return [_line(arm.name, _COLORS[index], x, values(index)) for index, arm in enumerate(ARMS)]


def _steps(results):
    """The optimiser step at which each rollout was generated."""
    return [rollout * results.settings.updates for rollout in range(results.rollouts)]


def _accept_rate(results):
    lines = _per_arm(_steps(results), results.accept_rate)
    chart = charts.panel("Accept rate", "optimiser step", "accepted tokens", lines, form="{:.0%}", width=charts.WIDE)
    caption = "Of all tokens of a rollout, over the updates it was used for."
    return charts.figure("accept-rate", "Accept rate", caption, [("", chart)])


def _deviation(results):
    x = _steps(results)
    panels = []
    high = 1.05 * max(results.deviation(arm, "d").max() for arm in range(len(ARMS)))
    for index, arm in enumerate(ARMS):
        lines = [
            _line("D", _COLORS[index], x, results.deviation(index, "d")),
            _line("D_SIS", _COLORS[index], x, results.deviation(index, "d_sis"), dashed=True),
        ]
        chart = charts.panel(
            f"D and D_SIS, {arm.name}", "optimiser step", "nats per response", lines, "{:.3g}", y_range=(0, high)
        )
        panels.append((arm.name, chart))
    caption = (
        "Log-importance deviation of the tokens of a response, before and after the decisions. Without SIS, D_SIS is "
        "what the decisions would have left; the trainer did not use them. With SIS, an accepted token has ratio 1, "
        "which the clip never holds back, so the two arms need not move equally far from the behaviour policy."
    )
    return charts.figure("deviation", "D against D_SIS", caption, panels)


def _reward(results):
    lines = _per_arm(_steps(results), results.reward)
    high = 1.05 * max(results.reward(arm).max() for arm in range(len(ARMS)))
    chart = charts.panel(
        "Reward", "optimiser step", "mean reward", lines, form="{:.2g}", y_range=(0, high), width=charts.WIDE
    )
    caption = "The fraction of a rollout's responses that are right, sampled at temperature 1."
    return charts.figure("reward", "Reward with and without SIS", caption, [("", chart)])


def _top_k(results):
    x = range(1, results.settings.top_k + 1)
    ticks = [k for k in x if results.settings.top_k <= 12 or k % 5 == 0]
    accept = charts.panel(
        "Accept rate against k", "k, slots used", "accepted tokens",
        _per_arm(x, lambda arm: results.by_top_k(arm, "accepted")), "{:.0%}", x_ticks=ticks,
    )  # fmt: skip
    # A logarithmic axis has no place for 0.
    residual = charts.panel(
        "Residual mass against k", "k, slots used", "residual mass",
        _per_arm(x, lambda arm: np.maximum(results.by_top_k(arm, "residual_mass"), 1e-9)), "{:.3g}", log=True, x_ticks=ticks,
    )  # fmt: skip
    caption = (
        f"Of the stalest update of every rollout ({results.settings.updates - 1} updates ahead of the behaviour "
        "policy), had only the k most probable tokens been recorded. Fewer slots give a smaller envelope, so more "
        "tokens may pass, but they leave more of the current policy out."
    )
    panels = [("Accept rate", accept), ("Residual mass", residual)]
    return charts.figure("top-k", "Accept rate and residual mass against k", caption, panels)


def _staleness(results):
    lines = _per_arm(range(results.settings.updates), results.accept_rate_by_staleness)
    chart = charts.panel(
        "Accept rate against staleness", "updates since the rollout", "accepted tokens", lines, form="{:.0%}",
        width=charts.WIDE,
    )  # fmt: skip
    caption = "Over all rollouts, by how many updates the current policy is ahead of the behaviour policy."
    return charts.figure("staleness", "Accept rate against staleness", caption, [("", chart)])
