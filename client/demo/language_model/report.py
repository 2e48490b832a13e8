"""The report: one HTML file that needs nothing but itself."""

from client.demo import charts, page
from client.demo.language_model.arms import ARMS
from client.demo.language_model.results import table, verdict

_COLORS = ("first", "second")


def write(results, path):
    """Writes the report to `path`."""
    settings = results.settings
    setting = (
        f"SmolLM2-135M-Instruct learned to add two numbers up to {settings.largest}, with the sum as the whole line, by "
        f"TRL's GRPO: in float32, on rollouts that vLLM made in bfloat16. Once with plain importance ratios and once "
        f"with SIS, from the same weights, on the same problems: {results.rollouts} rollouts of {settings.responses} "
        f"responses, each rollout used for {settings.updates} updates in one pass. vLLM's {settings.top_k} most probable "
        f"tokens were recorded at every position. In both arms the service decided about every token; only with SIS the "
        f"trainer used what it decided."
    )
    note = f"Of one seed, over the {results.rollouts} rollouts that both arms came to in {settings.seconds / 60:.0f} minutes."
    figures = [_accept_rate(results), _deviation(results), _reward(results), _staleness(results)]
    said = page.table(table(results)) + page.paragraph(verdict(results)) + page.paragraph(note)
    heading = "GRPO with and without SIS on a language model"
    page.write(path, heading, setting, [page.card("Summary", said)], figures, results.metrics)


def _per_arm(x, values):
    return [charts.Line(arm.name, _COLORS[index], list(x), values(index).tolist()) for index, arm in enumerate(ARMS)]


def _steps(results):
    """The update at which each rollout was generated."""
    return [rollout * results.settings.updates for rollout in range(results.rollouts)]


def _accept_rate(results):
    lines = _per_arm(_steps(results), lambda arm: results.by_update(arm, "accept_rate").mean(axis=1))
    chart = charts.panel("Accept rate", "optimiser step", "accepted tokens", lines, form="{:.0%}", width=charts.WIDE)
    caption = "Of all tokens of a rollout, over the updates it was used for."
    return charts.figure("accept-rate", "Accept rate", caption, [("", chart)])


def _deviation(results):
    panels = []
    high = 1.05 * max(results.by_update(arm, "d").mean(axis=1).max() for arm in range(len(ARMS)))
    for index, arm in enumerate(ARMS):
        lines = [
            charts.Line(
                said, _COLORS[index], _steps(results), results.by_update(index, name).mean(axis=1).tolist(), dashed=dashed
            )
            for said, name, dashed in (("D", "d", False), ("D_SIS", "d_sis", True))
        ]
        chart = charts.panel(
            f"D and D_SIS, {arm.name}", "optimiser step", "nats per token", lines, "{:.3g}", y_range=(0, high)
        )
        panels.append((arm.name, chart))
    caption = (
        "Log-importance deviation per token: D as lines, and dashed D_SIS, what the decisions leave of it. Part of it is "
        "there before the first update: vLLM computes in bfloat16, the trainer in float32. Without SIS, D_SIS is what the "
        "decisions would have left; the trainer did not use them."
    )
    return charts.figure("deviation", "D against D_SIS", caption, panels)


def _reward(results):
    lines = _per_arm(_steps(results), lambda arm: results.by_rollout(arm, "reward"))
    chart = charts.panel(
        "Reward", "optimiser step", "mean reward", lines, form="{:.2f}", y_range=(0, 1.05), width=charts.WIDE
    )
    caption = (
        f"The fraction of a rollout's {results.settings.responses} responses, sampled at temperature 1, that are the right "
        "sum and then the end of the line."
    )
    return charts.figure("reward", "Reward with and without SIS", caption, [("", chart)])


def _staleness(results):
    x = range(results.settings.updates)
    lines = _per_arm(x, lambda arm: results.by_update(arm, "accept_rate").mean(axis=0))
    chart = charts.panel(
        "Accept rate against staleness", "updates since the rollout", "accepted tokens", lines, form="{:.0%}",
        width=charts.WIDE, x_ticks=list(x),
    )  # fmt: skip
    caption = (
        "Over all rollouts, by how many updates the current policy is ahead of the behaviour policy. At 0 only the engines "
        "differ."
    )
    return charts.figure("staleness", "Accept rate against staleness", caption, [("", chart)])
