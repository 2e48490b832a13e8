"""Looks a run up for a reader that changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sis import Client, RunStatus


def find_run(client: Client, run_id: str) -> RunStatus:
    """Returns the status of a run. Client.get_run would note the run, and open it again on a server that lost it.

    Raises:
        sis.NotFound: No server that answers has the run.
    """
    import grpc

    from sis import NotFound

    for status in client.list_runs():
        if status.run.id == run_id:
            return status
    raise NotFound(grpc.StatusCode.NOT_FOUND, f"run '{run_id}' is unknown")
