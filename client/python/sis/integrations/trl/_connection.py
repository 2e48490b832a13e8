"""Chooses the server and the run of all processes of a training."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import replace
from typing import Any, Optional, Tuple

from sis import _errors
from sis._client import Client
from sis.integrations._config import SisConfig
from sis.integrations._service import of_the_first
from sis._server_process import LocalServer, local_server

# Characters of a run's name that say which training it is; the server takes 256 in all.
_LONGEST_NAME = 200


def agreed(processes: int, arguments: Any, config: SisConfig) -> Tuple[SisConfig, int, Optional[LocalServer]]:
    """Returns what the main process chooses for all.

    Args:
        processes: Number of processes.
        arguments: TrainingArguments.
        config: The settings.

    Returns:
        The settings, with addresses and run. The run's incarnation: above 0 if the run begins again. And the main
        process's own server, which ends with it; None elsewhere, or if another one is used.
    """
    server = None

    def chosen() -> Tuple[SisConfig, int]:
        nonlocal server
        address = config.address
        if address is None:
            if int(os.environ.get("LOCAL_WORLD_SIZE", processes)) < processes:
                raise ValueError("SisConfig.address is None, but there are several machines: start a server for all")
            server = local_server()
            address = server.address
        name = arguments.run_name or os.path.basename(os.path.abspath(arguments.output_dir or "trl"))
        plain = re.sub("[^A-Za-z0-9._-]", "-", name)[:_LONGEST_NAME]
        run_id = config.run or f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        incarnation = 0
        with Client(address) as client, contextlib.suppress(_errors.NotFound):
            incarnation = client.get_run(run_id).run.incarnation + 1
        return replace(config, address=address, run=run_id), incarnation

    return (*of_the_first(chosen), server)
