"""sisctl step list, show."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Callable, Iterable, Iterator, Mapping, Optional, Tuple

import typer
from rich.console import RenderableType
from rich.text import Text

from sis.cli.connection import RUN, SERVER, connected
from sis.cli.failure import fail
from sis.cli.output import OUTPUT, Output, Rows, console, count_text, number_text, print_json, properties, share_text
from sis.cli.verdicts import reason_text

if TYPE_CHECKING:
    from sis import AgeTotals, CorrectionTotals, Distributions, Histogram, Step, Totals

DRAW = typer.Argument("latest", metavar="[DRAW]", show_default=False, help="Draw; default: latest.")


def list_steps(
    run: str = RUN,
    last: Optional[int] = typer.Option(None, min=1, show_default=False, help="Number of last draws; default: all."),
    output: Output = OUTPUT,
    server: str = SERVER,
) -> None:
    """Lists the last 4,096 draws or fewer, the oldest first.

    \b
    A step is all evaluations of one draw, over all ranks. D, D_SIS and LOG_M
    are means over the scored tokens, in nats.

    \b
    Examples:
      sisctl step list math-7b --last 20
      sisctl step list math-7b -o json | jq '.steps[] | {draw, d: .totals.d}'
    """
    with connected(server) as client:
        steps = client.list_steps(client.get_run(run).run)
        shown = list(steps.items())[-(last or len(steps)) :]
        if output is Output.json:
            kept = [{"draw": draw, **vars(step)} for draw, step in shown]
            print_json({"steps": kept, "unanswered": steps.unanswered})
        else:
            console.print(step_table(shown))


def show(run: str = RUN, draw: str = DRAW, output: Output = OUTPUT, server: str = SERVER) -> None:
    """Shows the totals of one draw over all ranks.

    \b
    Means are over the scored positions: accepted, rejected or outside the
    top-K. k3 estimates KL(behaviour || current). The weight of a correction
    multiplies advantage * grad log p. "plain" is the ratio w, "clipped" is w
    cut to [0.8, 1.2], and "applied" is the modified ratio. All others were
    observed. ESS is the effective sample size, as a share of the positions.
    AGE is in policy versions: how far the recorded ones were behind.

    \b
    Examples:
      sisctl step show math-7b
      sisctl step show math-7b 1200 -o json
    """
    if draw != "latest" and not (draw.isdecimal() and int(draw) < 2**64):
        raise typer.BadParameter(f"{draw!r} is neither a number nor latest", param_hint="DRAW")
    with connected(server) as client:
        status = client.get_run(run)
        number = status.last_draw if draw == "latest" else int(draw)
        if number is None:
            fail(f"run '{run}': no draw has been evaluated")
        step = client.list_steps(status.run, draws=[number])[number]
        if output is Output.json:
            print_json({"draw": number, **vars(step)})
            return
        for part in _parts(number, step):
            console.print(part)


def seen(totals: Totals) -> int:
    """Counts scored and missing tokens."""
    return totals.scored + totals.missing


def missing_share(totals: Totals) -> float:
    return totals.missing / seen(totals) if seen(totals) else math.nan


def step_table(steps: Iterable[Tuple[int, Step]]) -> Rows:
    """Makes a row for each draw."""
    rows = Rows(
        "DRAW", "ENDED", "TOKENS", "ACCEPT", "EXPECTED", "D/TOKEN", "D_SIS", "LOG_M", "RESIDUAL", "K3", "MISSING",
        first_to_go=["ENDED", "LOG_M", "EXPECTED", "K3"],
    )  # fmt: skip
    for draw, step in steps:
        totals = step.totals
        rows.add(
            draw,
            time.strftime("%m-%d %H:%M", time.localtime(step.ended_at)),
            count_text(seen(totals)),
            share_text(totals.accept_rate),
            share_text(totals.mean_expected_acceptance),
            number_text(totals.mean_d),
            number_text(totals.mean_d_sis),
            number_text(totals.mean_log_envelope),
            share_text(totals.mean_residual_mass),
            number_text(totals.mean_k3),
            share_text(missing_share(totals)),
        )
    return rows


def correction_table(corrections: Mapping[str, CorrectionTotals]) -> Rows:
    rows = Rows(
        "CORRECTION", "ESS", "TOUCHED", "ZEROED", "WEIGHT", "|LOG WEIGHT|", "GRADIENT",
        left=["CORRECTION"], first_to_go=["|LOG WEIGHT|", "GRADIENT"],
    )  # fmt: skip
    for name, totals in corrections.items():

        def mean(total: float, text: Callable[[float], str] = number_text) -> str:
            return text(total / totals.positions if totals.positions else math.nan)

        rows.add(
            name,
            mean(totals.effective_sample_size, share_text),
            mean(totals.touched, share_text),
            mean(totals.zeroed, share_text),
            mean(totals.weight),
            mean(totals.abs_log_weight),
            mean(totals.gradient_mass),
        )
    return rows


def age_table(ages: Iterable[AgeTotals]) -> Rows:
    rows = Rows("AGE", "TOKENS", "ACCEPT", "D/TOKEN", "D_SIS", "ESS", left=["AGE"])
    for age in ages:
        rows.add(
            age.name,
            count_text(age.scored),
            share_text(age.accept_rate),
            number_text(age.mean_d),
            number_text(age.mean_d_sis),
            share_text(age.effective_sample_size / age.scored if age.scored else math.nan),
        )
    return rows


def prefix_table(step: Step) -> Rows:
    rows = Rows("TOP-K", "EXPECTED", "RESIDUAL", "TOKENS")
    for point in step.prefix_curve:
        means = (
            share_text(total / point.positions if point.positions else math.nan)
            for total in (point.expected_acceptance, point.residual_mass)
        )
        rows.add(point.top_k, *means, count_text(point.positions))
    return rows


def _parts(draw: int, step: Step) -> Iterator[RenderableType]:
    totals = step.totals
    violations = Text(str(totals.envelope_violations), "bold red" if totals.envelope_violations else "")
    yield properties(
        [
            ("draw", draw),
            ("sequences", step.sequences),
            ("accepted", totals.accepted),
            ("rejected", totals.rejected),
            ("outside top-K", totals.outside_top_k),
            ("missing", totals.missing),
            ("masked", totals.masked),
            ("envelope violations", violations),
            ("accept rate", share_text(totals.accept_rate)),
            ("expected accept rate", share_text(totals.mean_expected_acceptance)),
            ("mean acceptance probability", share_text(totals.mean_acceptance_probability)),
            ("D, D_SIS (nats)", f"{number_text(totals.d)}, {number_text(totals.d_sis)}"),
            ("D, D_SIS per token", f"{number_text(totals.mean_d)}, {number_text(totals.mean_d_sis)}"),
            ("mean k3 (nats)", number_text(totals.mean_k3)),
            ("mean log-envelope (nats)", number_text(totals.mean_log_envelope)),
            ("mean residual mass", share_text(totals.mean_residual_mass)),
            *([("not counted, no space", step.uncounted_positions)] if step.uncounted_positions else []),
        ]
    )
    if step.missing:
        yield ""
        yield properties((f"missing: {reason_text(reason)}", count) for reason, count in step.missing.items())
    if step.prefix_curve:
        yield ""
        yield prefix_table(step)
    if step.corrections:
        yield ""
        yield correction_table(step.corrections)
    if step.ages:
        yield ""
        yield age_table(step.ages)
    if step.distributions is not None:
        yield from _distributions(step.distributions)


def _distributions(distributions: Distributions) -> Iterator[RenderableType]:
    for name, histogram in (
        ("|LOG W| (NATS)", distributions.abs_log_ratio),
        ("LOG-ENVELOPE (NATS)", distributions.log_envelope),
        ("RESIDUAL MASS", distributions.residual_mass),
        ("ACCEPTANCE PROBABILITY", distributions.acceptance_probability),
    ):
        if any(histogram.counts):
            yield ""
            yield _histogram_table(name, histogram)
    ratios = Rows("RATIO", "TOKENS", left=["RATIO"])
    for bound, positions in distributions.ratios_beyond.items():
        ratios.add(f"{'<' if bound < 1 else '>'} {bound:.6g}", positions)
    yield from ("", ratios)


def _histogram_table(name: str, histogram: Histogram) -> Rows:
    """Makes a row for each bucket that holds something, with its upper bound."""
    rows = Rows(name, "TOKENS", "SHARE", "", left=[name, ""])
    everything = sum(histogram.counts)
    bounds = [*(f"<= {bound:.6g}" for bound in histogram.upper_bounds), "above"]
    for bound, count in zip(bounds, histogram.counts):
        if count:
            rows.add(bound, count, share_text(count / everything), "▇" * round(30 * count / everything))
    return rows
