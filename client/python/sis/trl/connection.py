"""Which server and run the processes of a training use, and what the mixins of all of TRL's trainers do with it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments

from sis import errors
from sis.client import Client
from sis.server_process import LocalServer, local_server
from sis.run import Run, label_of
from sis.trl import refusals
from sis.trl.config import SisConfig
from sis.versions import warn_unless_tested

# Of a run's name, what says of which training it is; the server takes 256 characters in all.
_LONGEST_NAME = 200

# One of TRL's trainers, to type checkers; what comes after a mixin is known when it is mixed.
Trainer: Any = object


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


class ConnectedMixin(Trainer):
    """Refuses what would be wrong, and knows server and run."""

    sis_client: Client

    def __init__(self, *args: Any, sis_config: Optional[SisConfig] = None, **kwargs: Any) -> None:
        """`sis_config`: SisConfig() if left out. All else is the trainer's. ValueError if its settings
        would make SIS wrong."""
        warn_unless_tested("rl", "trl")
        self._sis_config = sis_config or SisConfig()
        for value in (*args, *kwargs.values()):
            if isinstance(value, TrainingArguments):
                # No model need have been loaded, nor an engine started, for this.
                self._sis_check_arguments(value)
        super().__init__(*args, **kwargs)
        self._sis_check_arguments(self.args)
        self._sis_check_trainer()
        self._sis_connection = agreed(self.accelerator, self.args, self._sis_config)
        self._sis_server = self._sis_connection.server
        self.sis_client = Client(self._sis_connection.addresses)

    def _sis_check_arguments(self, arguments: Any) -> None:
        refusals.check_sharding(arguments)

    def _sis_check_trainer(self) -> None:
        """The same of what is known once the trainer is made."""

    def _sis_create_run(self, connection: Connection, **settings: Any) -> Run:
        return self.sis_client.create_run(connection.run_id, incarnation=connection.incarnation, **settings)

    def _sis_run_settings(self) -> Dict[str, Any]:
        seed = self._sis_config.seed
        return {
            "seed": self.args.seed if seed is None else seed,
            "vocabulary_size": self._sis_model().get_output_embeddings().out_features,
            "top_k": self._sis_config.top_k,
            "mass": self._sis_config.mass,
            "model": label_of(str(getattr(self.model.config, "_name_or_path", ""))),
        }

    def _sis_model(self) -> Any:
        """The model without wrappers and adapters around it; adapters in it stay."""
        model = self.accelerator.unwrap_model(self.model)
        return model.get_base_model() if hasattr(model, "get_base_model") else model
