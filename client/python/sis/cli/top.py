"""sisctl top."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sis.cli.connection import SERVER, addresses, complete_run, connect, connected
from sis.cli.output import (
    Cell, Rows, bytes_text, console, count_text, finding_texts, number_text, of, or_dash, reason_text, share_text,
    verdict_text,
)  # fmt: skip
from sis.cli.server import server_text
from sis.cli.steps import MISSING, QUANTITIES, Drawn, correction_table, prefix_table, step_table

if TYPE_CHECKING:
    from sis import Client, RunConfig, RunStatus, Step

# Rows of the table of draws, and draws of a curve.
_TABLE_DRAWS = 12
_CURVE_DRAWS = 64

_LEVELS = "▁▂▃▄▅▆▇█"


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

    if once or not console.is_terminal:
        with connected(server) as client:
            console.print(_frame(server, client, run))
        return
    with connect(server) as client:
        shown = _frame(server, client, run)
        answered = time.strftime("%H:%M:%S")
        live = Live(shown, console=console, screen=True, auto_refresh=False)
        with live, contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(interval)
                try:
                    shown = _frame(server, client, run)
                    answered = time.strftime("%H:%M:%S")
                    live.update(shown, refresh=True)
                except Error as error:
                    since = Text.assemble((f"No answer since {answered}", "bold red"), f": {error.message}\n")
                    live.update(Group(since, shown), refresh=True)


def _frame(server: str, client: Client, run: Optional[str]) -> RenderableType:
    servers = map(server_text, addresses(server), client.get_servers())
    if run is None:
        return Group(*servers, "", _runs(client.list_runs()))
    status = client.get_run(run)
    last = status.last_draw or 0
    steps = client.list_steps(status.run, after=last - _CURVE_DRAWS if last >= _CURVE_DRAWS else None)
    return Group(*servers, "", *_run(status, list(map(Drawn._make, steps.items()))[-_CURVE_DRAWS:]))


def _runs(runs: List[RunStatus]) -> RenderableType:
    from sis import Totals

    if not runs:
        return "No runs yet: a trainer opens one."

    def of_last(name: str, text: Callable[[float], str]) -> Callable[[Any], Cell]:
        return of("last_totals", lambda last: text(getattr(last or Totals(), name)))

    labels = "TASK, ALGORITHM, MODEL"
    columns = {
        "RUN": of("run.id"),
        "VERDICT": of("verdict", verdict_text),
        "DRAW": of("last_draw", or_dash),
        "ACCEPT": of_last("accept_rate", share_text),
        "D/TOKEN": of_last("mean_d", number_text),
        "D_SIS": of_last("mean_d_sis", number_text),
        "MISSING": of_last("missing_share", share_text),
        "TOKENS": of("positions", count_text),
        "MEMORY": of("bytes", bytes_text),
        labels: of("run.config", _labels),
    }
    worst_first = sorted(runs, key=lambda status: -status.verdict)
    to_go = [labels, "MEMORY", "TOKENS", "D_SIS"]
    rows = Rows(columns, worst_first, left=["RUN", "VERDICT", labels], first_to_go=to_go)
    findings = [Text(f"{status.run.id}: {status.findings[0].reason}") for status in worst_first if status.findings]
    return Group(rows, *([""] if findings else []), *findings)


def _labels(config: RunConfig) -> str:
    return ", ".join(filter(None, (config.task, config.algorithm, config.model)))


def _run(status: RunStatus, last: List[Drawn]) -> Iterator[RenderableType]:
    config = status.run.config
    yield Text.assemble((status.run.id, "bold"), "  ", verdict_text(status.verdict), f"  {_labels(config)}")
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
    steps = [drawn.step for drawn in last]
    yield from (_curves(steps), "", step_table(reversed(last[-_TABLE_DRAWS:])), "")
    if steps[-1].corrections:
        yield from (correction_table(steps[-1].corrections), "")
    with_curve = [step for step in steps if step.prefix_curve]
    yield (
        prefix_table(with_curve[-1])
        if with_curve
        else Text("Accept rate against k: ask for it in an evaluation, for example prefix_curve=(1, 2, 4, 8).", "dim")
    )


def _curves(steps: List[Step]) -> RenderableType:
    """Draws each quantity over the steps, with its last value."""
    rows = Table(box=None, pad_edge=False, show_header=False)
    for justify in ("left", "right", "left", "left"):
        rows.add_column(justify=justify, no_wrap=True)
    for quantity in (*QUANTITIES, MISSING):
        values = [getattr(step.totals, quantity.attribute) for step in steps]
        rows.add_row(quantity.name, quantity.text(values[-1]), quantity.unit, _curve(values))
    for reason in sorted({reason for step in steps for reason in step.missing}):
        values = [step.missing.get(reason, 0) / max(step.totals.seen, 1) for step in steps]
        rows.add_row(f"  {reason_text(reason)}", share_text(values[-1]), "", _curve(values))
    return rows


def _curve(values: List[float]) -> str:
    """Draws one character per value, scaled from the smallest value to the largest."""
    finite = [value for value in values if value == value and abs(value) != float("inf")]
    least, most = min(finite, default=0.0), max(finite, default=0.0)
    scale = 7 / (most - least) if most > least else 0.0
    return "".join(_LEVELS[round((value - least) * scale)] if value in finite else " " for value in values)
