"""Which server and run the processes of a training use."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

from accelerate.utils import broadcast_object_list

from sis import errors
from sis.client import Client
from sis.server_process import LocalServer, local_server
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


def of_the_main_process(accelerator: Any, make: Callable[[], Any]) -> Any:
    """What it makes, in all processes. Where it raises, all do: the others a RuntimeError with its words."""
    made = None
    failed: Optional[Exception] = None
    if accelerator.is_main_process:
        try:
            made = make()
        except Exception as error:
            failed = error
    # Not all exceptions can be pickled.
    told: List[Any] = [made, failed and f"{type(failed).__name__}: {failed}"]
    if accelerator.num_processes > 1:
        broadcast_object_list(told, from_process=0)
    if failed is not None:
        raise failed
    if told[1] is not None:
        raise RuntimeError(f"the main process: {told[1]}")
    return told[0]


def agreed(accelerator: Any, arguments: Any, config: SisConfig) -> Connection:
    """What the main process chooses for all of them. `arguments`: TrainingArguments."""
    server = None

    def chosen() -> Tuple[str, List[str], int]:
        nonlocal server
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
        return run_id, addresses, incarnation

    return Connection(*of_the_main_process(accelerator, chosen), server)
