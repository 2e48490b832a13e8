"""sisctl top."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable, Iterator, List, Optional, Tuple

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sis.cli.connection import SERVER, addresses, complete_run, connect, connected
from sis.cli.output import Rows, bytes_text, console, count_text, number_text, share_text
from sis.cli.server import server_text
from sis.cli.steps import correction_table, missing_share, prefix_table, seen, step_table
from sis.cli.verdicts import finding_texts, reason_text, verdict_text

if TYPE_CHECKING:
    from sis import Client, Run, RunStatus, Step, Totals

# Rows of the table of draws, and draws of a curve.
_TABLE_DRAWS = 12
_CURVE_DRAWS = 64

_LEVELS = "▁▂▃▄▅▆▇█"

# Name, value and its text, and unit.
_QUANTITIES: Tuple[Tuple[str, Callable[["Totals"], float], Callable[[float], str], str], ...] = (
    ("accept rate", lambda totals: totals.accept_rate, share_text, ""),
    ("expected", lambda totals: totals.mean_expected_acceptance, share_text, ""),
    ("D", lambda totals: totals.mean_d, number_text, " nats/token"),
    ("D_SIS", lambda totals: totals.mean_d_sis, number_text, " nats/token"),
    ("log-envelope", lambda totals: totals.mean_log_envelope, number_text, " nats"),
    ("residual mass", lambda totals: totals.mean_residual_mass, share_text, ""),
    ("k3", lambda totals: totals.mean_k3, number_text, " nats/token"),
    ("missing", missing_share, share_text, ""),
)


def top(
    run: Optional[str] = typer.Argument(
        None, metavar="[RUN]", show_default=False, help="Run; default: all runs.", autocompletion=complete_run
    ),
    once: bool = typer.Option(False, "--once", help="Print once and end; the default outside a terminal."),
    interval: float = typer.Option(2.0, min=0.1, max=3600, help="Time between two updates, in seconds."),
    server: str = SERVER,
) -> None:
    """Watches the servers and their runs, or one run, until Ctrl-C.

    \b
    Without RUN: all runs, the worst first, with their last draw and their
    worst problem. With RUN: its last draws and all its problems. D, D_SIS,
    LOG_M and K3 are means over the scored tokens, in nats. ESS is the
    effective sample size, as a share of the tokens. sisctl web shows the same
    and more in a browser.

    \b
    Examples:
      sisctl top
      sisctl top math-7b --interval 10
      sisctl top math-7b --once | less
    """
    from sis import Error

    steps = _LastSteps()
    if once or not console.is_terminal:
        with connected(server) as client:
            console.print(_frame(server, client, run, steps))
        return
    with connect(server) as client:
        shown = _frame(server, client, run, steps)
        answered = time.strftime("%H:%M:%S")
        with Live(shown, console=console, screen=True, auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(interval)
                    try:
                        shown = _frame(server, client, run, steps)
                        answered = time.strftime("%H:%M:%S")
                        live.update(shown, refresh=True)
                    except Error as error:
                        since = Text.assemble((f"No answer since {answered}", "bold red"), f": {error.message}\n")
                        live.update(Group(since, shown), refresh=True)
            except KeyboardInterrupt:
                pass


class _LastSteps:
    """The last draws of a run. Older ones, which change no more, are listed only once."""

    def __init__(self) -> None:
        self._after: Optional[int] = None

    def of(self, client: Client, run: Run) -> List[Tuple[int, Step]]:
        steps = list(client.list_steps(run, after=self._after).items())
        if len(steps) > _CURVE_DRAWS:
            self._after = steps[-_CURVE_DRAWS - 1][0]
        return steps[-_CURVE_DRAWS:]


def _frame(server: str, client: Client, run: Optional[str], steps: _LastSteps) -> RenderableType:
    states = zip(addresses(server), client.get_servers())
    servers = [server_text(address, state) for address, state in states]
    if run is None:
        return Group(*servers, "", _runs(client.list_runs()))
    status = client.get_run(run)
    return Group(*servers, "", *_run(status, steps.of(client, status.run)))


def _runs(runs: List[RunStatus]) -> RenderableType:
    from sis import Totals

    if not runs:
        return "No runs yet: a trainer opens one."
    rows = Rows(
        "RUN", "VERDICT", "DRAW", "ACCEPT", "D/TOKEN", "D_SIS", "MISSING", "TOKENS", "MEMORY", "TASK, ALGORITHM, MODEL",
        left=["RUN", "VERDICT", "TASK, ALGORITHM, MODEL"],
        first_to_go=["TASK, ALGORITHM, MODEL", "MEMORY", "TOKENS", "D_SIS"],
    )  # fmt: skip
    findings = []
    for status in sorted(runs, key=lambda status: -status.verdict):
        last = status.last_totals or Totals()
        config = status.run.config
        rows.add(
            status.run.id,
            verdict_text(status.verdict),
            "-" if status.last_draw is None else status.last_draw,
            share_text(last.accept_rate),
            number_text(last.mean_d),
            number_text(last.mean_d_sis),
            share_text(missing_share(last)),
            count_text(status.positions),
            bytes_text(status.bytes),
            ", ".join(filter(None, (config.task, config.algorithm, config.model))),
        )
        if status.findings:
            findings.append(Text(f"{status.run.id}: {status.findings[0].reason}"))
    return Group(rows, *([""] if findings else []), *findings)


def _run(status: RunStatus, last: List[Tuple[int, Step]]) -> Iterator[RenderableType]:
    config = status.run.config
    labels = ", ".join(filter(None, (config.task, config.algorithm, config.model)))
    yield Text.assemble((status.run.id, "bold"), "  ", verdict_text(status.verdict), f"  {labels}")
    yield Text(
        f"  policy version {status.policy_version}  top-K {config.top_k}  {count_text(status.sequences)} sequences, "
        f"{count_text(status.positions)} tokens, {bytes_text(status.bytes)}\n"
    )
    findings = list(finding_texts(status))
    yield from findings
    if findings:
        yield ""
    if not last:
        yield "Nothing evaluated yet."
        return
    yield _curves([step for _, step in last])
    yield ""
    yield step_table(reversed(last[-_TABLE_DRAWS:]))
    step = last[-1][1]
    if step.corrections:
        yield ""
        yield correction_table(step.corrections)
    yield ""
    with_curve = [step for _, step in last if step.prefix_curve]
    yield prefix_table(with_curve[-1]) if with_curve else Text(
        "Accept rate against k: ask for it in an evaluation, for example prefix_curve=(1, 2, 4, 8).", "dim"
    )


def _curves(steps: List[Step]) -> RenderableType:
    """Draws each quantity over the steps, with its last value."""
    rows = Table(box=None, pad_edge=False, show_header=False)
    for justify in ("left", "right", "left", "left"):
        rows.add_column(justify=justify, no_wrap=True)
    for name, value, text, unit in _QUANTITIES:
        values = [value(step.totals) for step in steps]
        rows.add_row(name, text(values[-1]), unit, _curve(values))
    for reason in sorted({reason for step in steps for reason in step.missing}):
        values = [step.missing.get(reason, 0) / max(seen(step.totals), 1) for step in steps]
        rows.add_row(f"  {reason_text(reason)}", share_text(values[-1]), "", _curve(values))
    return rows


def _curve(values: List[float]) -> str:
    """Draws one character per value, scaled from the smallest value to the largest."""
    finite = [value for value in values if value == value and abs(value) != float("inf")]
    least, most = min(finite, default=0.0), max(finite, default=0.0)
    scale = 7 / (most - least) if most > least else 0.0
    return "".join(_LEVELS[round((value - least) * scale)] if value in finite else " " for value in values)
