"""Tables of tokens in the trackers of `trainer.logger`: verl's own object for trackers, in the process that drives a
training, writes them."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Mapping

from sis import tracking
from sis.integrations import _token_tables as token_tables
from sis.integrations._config import SisConfig
from sis.integrations.verl._settings import config_of


def install() -> None:
    """Lets verl's Tracking write tables."""
    from verl.utils.tracking import Tracking

    Tracking.__init__ = _told_the_configuration(Tracking.__init__)
    Tracking.log = _with_tables(Tracking.log)


def _told_the_configuration(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def told(
        self: Any, project_name: Any, experiment_name: Any, default_backend: Any = "console", config: Any = None
    ) -> None:
        init(self, project_name, experiment_name, default_backend, config)
        parts = (config or {}).get("actor_rollout_ref") or {}
        settings = config_of((parts.get("rollout") or {}).get("custom"))
        if settings is not None and settings.token_table_steps:
            self.sis_token_tables = _tables(self, settings, parts["model"])

    return told


def _with_tables(log: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(log)
    def logged(self: Any, data: Any, step: int, backend: Any = None) -> None:
        log(self, data, step, backend)
        tables = getattr(self, "sis_token_tables", None)
        # Step 0 is a validation.
        if tables is not None and step:
            tables.stepped(step)

    return logged


def _tables(of_verl: Any, settings: SisConfig, model: Mapping[str, Any]) -> token_tables.TokenTables:
    client = settings.client(skips=False)

    @functools.cache
    def tokenizer() -> Any:
        from verl.utils import hf_tokenizer
        from verl.utils.fs import copy_to_local

        path = model.get("tokenizer_path") or model["path"]
        return hf_tokenizer(copy_to_local(path), trust_remote_code=model.get("trust_remote_code", False))

    def logs() -> Dict[str, tracking.Log]:
        writer = getattr(of_verl.logger.get("tensorboard"), "writer", None)
        return token_tables.open_logs(of_verl.logger, lambda token: tokenizer().decode([token]), writer)

    # The incarnation is known once the actors have opened it.
    run = lambda: client.get_run(settings.run).run
    return token_tables.TokenTables(client, run, settings.token_table_steps, logs)
