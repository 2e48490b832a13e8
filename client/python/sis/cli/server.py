"""sisctl server show."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict

from rich.text import Text

from sis.cli.connection import SERVER, addresses, connected
from sis.cli.output import OUTPUT, Output, bytes_text, count_text, duration_text, print_output, share_text

if TYPE_CHECKING:
    from sis import ServerState

# Rates are means over this time, in seconds.
_RATE_SECONDS = 10


def show(output: Output = OUTPUT, server: str = SERVER) -> None:
    """Shows version, cache and rates of each server. Fails if one is unreachable.

    \b
    Examples:
      sisctl server show
      sisctl server show --server ratios-0:50051,ratios-1:50051 -o json
    """
    from sis import Error

    with connected(server) as client:
        states = list(zip(addresses(server), client.get_servers()))
        answers = []
        for address, state in states:
            error = str(state) if isinstance(state, Error) else None
            answers.append({"address": address, "error": error, "state": None if error else state})
        print_output(output, answers, (server_text(*state) for state in states))


def server_text(address: str, state: Any) -> Text:
    """Describes a server in three lines, or names the error of an unreachable server."""
    from sis import Error

    if isinstance(state, Error):
        return Text.assemble(address, "  ", ("no answer", "bold red"), f": {state.message}")
    rates = _rates(state)
    failed = f"failed {count_text(rates['failed_rpcs'])}/s"
    return Text.assemble(
        (address, "bold"), f"  sis_server {state.version}  ",
        "serving" if state.ready else ("not serving", "bold red"),
        f"  for {duration_text(state.history[-1].at - state.started_at)}",
        f"  backend {state.backend}  store {state.store}\n",
        f"  cache {share_text(state.cache_bytes / state.cache_budget_bytes)}, ",
        f"{bytes_text(state.cache_bytes)} of {bytes_text(state.cache_budget_bytes)}\n",
        f"  recorded {count_text(rates['ingested_positions'])} tokens/s, {bytes_text(rates['ingested_bytes'])}/s",
        f"   evaluated {count_text(rates['evaluated_positions'])} tokens/s",
        f"   calls {count_text(rates['rpcs'])}/s, ", (failed, "bold red") if rates["failed_rpcs"] > 0 else failed,
    )  # fmt: skip


def _rates(state: ServerState) -> Dict[str, float]:
    """Returns rates per second, by counter; NaN if the server has just started."""
    names = ("ingested_positions", "ingested_bytes", "evaluated_positions", "rpcs", "failed_rpcs")
    last = state.history[-1]
    first = next((past for past in reversed(state.history) if past.at <= last.at - _RATE_SECONDS), state.history[0])
    seconds = last.at - first.at or math.nan
    return {name: (getattr(last, name) - getattr(first, name)) / seconds for name in names}
