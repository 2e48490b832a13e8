"""sisctl step list, show."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional

import typer
from rich.console import RenderableType
from rich.text import Text

from sis.cli.connection import RUN, SERVER, connected
from sis.cli.output import (
    OUTPUT, Output, Rows, count_text, fail, number_text, of, print_output, properties, reason_text, share_text,
)  # fmt: skip

if TYPE_CHECKING:
    from sis import CorrectionTotals, Distributions, Histogram, Step

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
        kept = [{"draw": draw, **vars(step)} for draw, step in shown]
        table = step_table(map(Drawn._make, shown))
        print_output(output, {"steps": kept, "unanswered": steps.unanswered}, [table])


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
        print_output(output, {"draw": number, **vars(step)}, _parts(number, step))


class Drawn(NamedTuple):
    draw: int
    step: Step


class Quantity(NamedTuple):
    """A mean over the scored tokens of a draw: an attribute of Totals."""

    title: str
    name: str
    attribute: str
    text: Callable[[float], str]
    unit: str = ""


QUANTITIES = (
    Quantity("ACCEPT", "accept rate", "accept_rate", share_text),
    Quantity("EXPECTED", "expected", "mean_expected_acceptance", share_text),
    Quantity("D/TOKEN", "D", "mean_d", number_text, " nats/token"),
    Quantity("D_SIS", "D_SIS", "mean_d_sis", number_text, " nats/token"),
    Quantity("LOG_M", "log-envelope", "mean_log_envelope", number_text, " nats"),
    Quantity("RESIDUAL", "residual mass", "mean_residual_mass", share_text),
    Quantity("K3", "k3", "mean_k3", number_text, " nats/token"),
)
MISSING = Quantity("MISSING", "missing", "missing_share", share_text)


def ratio(part: float, whole: float) -> float:
    """Returns NaN for a whole of 0."""
    return part / whole if whole else math.nan


_STEP_COLUMNS = {
    "DRAW": of("draw"),
    "ENDED": of("step.ended_at", lambda at: time.strftime("%m-%d %H:%M", time.localtime(at))),
    "TOKENS": of("step.totals.seen", count_text),
    **{quantity.title: of(f"step.totals.{quantity.attribute}", quantity.text) for quantity in (*QUANTITIES, MISSING)},
}


def step_table(steps: Iterable[Drawn]) -> Rows:
    """Makes a row for each draw."""
    return Rows(_STEP_COLUMNS, steps, first_to_go=["ENDED", "LOG_M", "EXPECTED", "K3"])


def _per_position(attribute: str, text: Callable[[float], str] = number_text) -> Callable[[Any], str]:
    """Returns the function from a name and its CorrectionTotals to a mean."""
    return lambda row: text(ratio(getattr(row[1], attribute), row[1].positions))


_CORRECTION_COLUMNS = {
    "CORRECTION": lambda row: row[0],
    "ESS": _per_position("effective_sample_size", share_text),
    "TOUCHED": _per_position("touched", share_text),
    "ZEROED": _per_position("zeroed", share_text),
    "WEIGHT": _per_position("weight"),
    "|LOG WEIGHT|": _per_position("abs_log_weight"),
    "GRADIENT": _per_position("gradient_mass"),
}


def correction_table(corrections: Mapping[str, CorrectionTotals]) -> Rows:
    to_go = ["|LOG WEIGHT|", "GRADIENT"]
    return Rows(_CORRECTION_COLUMNS, corrections.items(), left=["CORRECTION"], first_to_go=to_go)


# Columns of AgeTotals.
_AGE_COLUMNS = {
    "AGE": of("name"),
    "TOKENS": of("scored", count_text),
    "ACCEPT": of("accept_rate", share_text),
    "D/TOKEN": of("mean_d", number_text),
    "D_SIS": of("mean_d_sis", number_text),
    "ESS": lambda age: share_text(ratio(age.effective_sample_size, age.scored)),
}


# Columns of PrefixPoint.
_PREFIX_COLUMNS = {
    "TOP-K": of("top_k"),
    "EXPECTED": lambda point: share_text(ratio(point.expected_acceptance, point.positions)),
    "RESIDUAL": lambda point: share_text(ratio(point.residual_mass, point.positions)),
    "TOKENS": of("positions", count_text),
}


def prefix_table(step: Step) -> Rows:
    return Rows(_PREFIX_COLUMNS, step.prefix_curve)


def _parts(draw: int, step: Step) -> Iterator[RenderableType]:
    totals = step.totals
    violations = Text(str(totals.envelope_violations), "bold red" if totals.envelope_violations else "")
    shown = {
        "draw": draw,
        "sequences": step.sequences,
        "accepted": totals.accepted,
        "rejected": totals.rejected,
        "outside top-K": totals.outside_top_k,
        "missing": totals.missing,
        "masked": totals.masked,
        "envelope violations": violations,
        **{one.name: one.text(getattr(totals, one.attribute)) + one.unit for one in QUANTITIES},
        "acceptance probability": share_text(totals.mean_acceptance_probability),
        **{f"missing: {reason_text(reason)}": count for reason, count in step.missing.items()},
    }
    if step.uncounted_positions:
        shown["not counted, no space"] = step.uncounted_positions
    yield properties(shown)
    if step.prefix_curve:
        yield from ("", prefix_table(step))
    if step.corrections:
        yield from ("", correction_table(step.corrections))
    if step.ages:
        yield from ("", Rows(_AGE_COLUMNS, step.ages, left=["AGE"]))
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
            yield from ("", _histogram_table(name, histogram))
    ratios = {
        "RATIO": lambda beyond: f"{'<' if beyond[0] < 1 else '>'} {beyond[0]:.6g}",
        "TOKENS": lambda beyond: str(beyond[1]),
    }
    yield from ("", Rows(ratios, distributions.ratios_beyond.items(), left=["RATIO"]))


def _histogram_table(name: str, histogram: Histogram) -> Rows:
    """Makes a row for each bucket that holds something, with its upper bound."""
    everything = sum(histogram.counts)
    bounds = [*(f"<= {bound:.6g}" for bound in histogram.upper_bounds), "above"]
    columns = {
        name: lambda bucket: bucket[0],
        "TOKENS": lambda bucket: str(bucket[1]),
        "SHARE": lambda bucket: share_text(bucket[1] / everything),
        "": lambda bucket: "▇" * round(30 * bucket[1] / everything),
    }
    return Rows(columns, [bucket for bucket in zip(bounds, histogram.counts) if bucket[1]], left=[name, ""])
