"""Which server and run the processes of a training use."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any, List, NamedTuple, Optional

from accelerate.utils import broadcast_object_list

from sis import errors
from sis.client import Client
from sis.local_server import LocalServer, local_server
from sis.trl.config import SisConfig

# Of a run's name, what says of which training it is; the server takes 256 characters in all.
_LONGEST_NAME = 200


class Connection(NamedTuple):
    run_id: str
    # As Client takes them. One server too is a list: what it is when it gives no answer is then
    # MISSING, at once.
    addresses: List[str]
    # That of a run begun anew.
    incarnation: int
    # Of the main process, if it had to start one. Ends with this process.
    server: Optional[LocalServer]


def agreed(accelerator: Any, arguments: Any, config: SisConfig) -> Connection:
    """What the main process chooses for all of them. `arguments`: TrainingArguments."""
    chosen: List[Any] = [None]
    server = None
    if accelerator.is_main_process:
        address = config.address
        if address is None:
            if int(os.environ.get("LOCAL_WORLD_SIZE", accelerator.num_processes)) < accelerator.num_processes:
                raise ValueError("SisConfig.address is None, but there are several machines: start a server for all")
            server = local_server()
            address = server.address
        addresses = [address] if isinstance(address, str) else list(address)
        name = arguments.run_name or os.path.basename(os.path.abspath(arguments.output_dir or "trl"))
        plain = re.sub("[^A-Za-z0-9._-]", "-", name)[:_LONGEST_NAME]
        run_id = config.run or f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        incarnation = 0
        with Client(address) as client, contextlib.suppress(errors.NotFound):
            incarnation = client.get_run(run_id).run.incarnation + 1
        chosen = [(run_id, addresses, incarnation)]
    if accelerator.num_processes > 1:
        broadcast_object_list(chosen, from_process=0)
    return Connection(*chosen[0], server)
