"""The report: what the arms did, and what may be said of it."""

import html

from client.demo import charts, page
from client.demo.arms import PANELS
from client.demo.results import basis, comparisons, table, verdicts

# By name of the arm.
_COLORS = {"GRPO": "first", "GRPO + SIS": "second", "soft acceptance": "third", "GRPO recomputed": "fourth"}


def write(results, path):
    """Writes the report to `path`."""
    settings = results.settings
    figures = [
        _differences(results),
        _reward(results),
        _accept_rate(results),
        _deviation(results),
        _top_k(results),
        _staleness(results),
    ]
    setting = (
        f"A small transformer, that of the study (docs/study.md), learned to add hexadecimal numbers of "
        f"{settings.digits} digits by supervision until it solved at least {settings.warm_up_accuracy:.0%} of the problems. From "
        f"there every arm trained it on, from the same weights, on the same problems: {results.rollouts} rollouts of "
        f"{settings.responses} responses, each used for {settings.updates} updates in one pass. In the first panel the "
        "rollout worker computes as the trainer does; in the second its weights are rounded to 5 bits, and one arm "
        "does what is done without this service: the trainer recomputes the old log-probs. The behaviour policy's "
        f"{settings.top_k} most probable tokens were recorded at every position. In all arms the service decided about "
        "every token; only with SIS and soft acceptance the trainer used what it decided."
    )
    seeds = f"{len(results.learned)} seeds" if len(results.learned) > 1 else "one seed"
    summary = "".join(page.table(table(results, panel)) for panel in PANELS) + page.paragraph(
        f"Means over {seeds}; in brackets, and as bands below, the smallest and the largest seed."
    )
    said = "".join(_verdicts(name, sentences) for name, sentences in verdicts(results).items())
    cards = [
        page.card("What the intervals say", said + page.paragraph(basis(results))),
        page.card("Summary", summary),
    ]
    heading = "GRPO, SIS and soft acceptance, with two kinds of rollout workers"
    page.write(path, heading, setting, cards, figures, results.metrics)


def _verdicts(panel, sentences):
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f"<h3>{html.escape(panel)}</h3><ul>{items}</ul>"


def _line(name, color, x, by_seed, dashed=False):
    """The mean over seeds; of several, with the range as a band. by_seed is [seeds, len(x)]."""
    band = {} if len(by_seed) == 1 else {"low": by_seed.min(axis=0).tolist(), "high": by_seed.max(axis=0).tolist()}
    return charts.Line(name, color, list(x), by_seed.mean(axis=0).tolist(), dashed=dashed, **band)


def _panels(name, title, x_title, y_title, caption, x, values, dashed=None, y_range=None, **chart):
    """A figure with a chart per panel, on the same scale: a line per arm, of values(arm) [seeds,
    len(x)].

    dashed: such values too, drawn as dashed lines without a band. y_range: of all values, else of
    each panel's.
    """
    charts_of_panels = []
    for panel in PANELS:
        lines = [_line(arm.name, _COLORS[arm.name], x, values(arm)) for arm in panel.arms]
        if dashed:
            name_of, of_arm = dashed
            lines += [
                _line(f"{arm.name}, {name_of}", _COLORS[arm.name], x, of_arm(arm).mean(axis=0, keepdims=True), True)
                for arm in panel.arms
            ]
        drawn = charts.panel(f"{title}: {panel.name}", x_title, y_title, lines, y_range=y_range, **chart)
        charts_of_panels.append((panel.name, drawn))
    return charts.figure(name, title, caption, charts_of_panels)


def _highest(values):
    """A range from 0 for the values of all arms."""
    return 0, 1.05 * max(values(arm).max() for panel in PANELS for arm in panel.arms)


def _steps(results):
    """The optimiser step at which each rollout was generated."""
    return [rollout * results.settings.updates for rollout in range(results.rollouts)]


def _differences(results):
    groups = {}
    for panel, arm, base in comparisons():
        found = results.difference(arm, base)
        interval = charts.Interval(f"{arm.name} less {base.name}", _COLORS[arm.name], found.mean, found.half)
        groups.setdefault(panel, []).append(interval)
    chart = charts.forest("Differences between arms", "difference of the mean reward", list(groups.items()))
    caption = "Means over pairs of runs with the same seed, and their 95% intervals by Student's t."
    return charts.figure("differences", "Differences between arms", caption, [("", chart)])


def _reward(results):
    caption = "The fraction of a rollout's responses that are right, as the panel's worker sampled them at temperature 1."
    return _panels(
        "reward", "Reward", "optimiser step", "mean reward", caption, _steps(results), results.reward,
        form="{:.2g}", y_range=_highest(results.reward),
    )  # fmt: skip


def _accept_rate(results):
    caption = "Of all tokens of a rollout, over the updates it was used for, whether the arm used the decisions or not."
    return _panels(
        "accept-rate", "Accept rate", "optimiser step", "accepted tokens", caption, _steps(results),
        results.accept_rate, form="{:.0%}", y_range=(0, 1),
    )  # fmt: skip


def _deviation(results):
    def deviation(arm):
        return results.deviation(arm, "d")

    caption = (
        "Log-importance deviation of the tokens of a response: D as lines, and dashed D_SIS, what the decisions leave of "
        "it. GRPO's arms did not use the decisions. An accepted token has ratio 1, which the clip never holds back, so "
        "arms need not move equally far from the behaviour policy."
    )
    return _panels(
        "deviation", "D against D_SIS", "optimiser step", "nats per response", caption, _steps(results), deviation,
        dashed=("D_SIS", lambda arm: results.deviation(arm, "d_sis")), form="{:.3g}", y_range=_highest(deviation),
    )  # fmt: skip


def _top_k(results):
    ticks = list(range(1, results.settings.top_k + 1))
    caption = (
        f"Of the stalest update of every rollout ({results.settings.updates - 1} updates ahead of the behaviour "
        "policy), had only the k most probable tokens been recorded: the accept rate to be expected, and dashed the "
        "current policy's mass outside of them. Fewer slots give a smaller envelope, so more tokens may pass, but they "
        "leave more of the current policy out."
    )
    return _panels(
        "top-k", "Accept rate and residual mass against k", "k, slots used", "share", caption, ticks,
        lambda arm: results.by_top_k(arm, "expected_acceptance"),
        dashed=("residual mass", lambda arm: results.by_top_k(arm, "residual_mass")),
        form="{:.2%}", x_ticks=ticks, y_range=(0, 1),
    )  # fmt: skip


def _staleness(results):
    caption = "Over all rollouts, by how many updates the current policy is ahead of the behaviour policy."
    return _panels(
        "staleness", "Accept rate against staleness", "updates since the rollout", "accepted tokens", caption,
        range(results.settings.updates), results.accept_rate_by_staleness, form="{:.0%}", y_range=(0, 1),
    )  # fmt: skip
