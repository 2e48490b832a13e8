"""Tables of tokens in the trackers of `trainer.logger`: verl's own object for trackers, in the process that drives a
training, writes them."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Dict, Mapping

from sis import tracking
from sis.integrations import _token_tables as token_tables
from sis.integrations._config import SisConfig
from sis.integrations.verl._settings import config_of, replace_function


def install() -> None:
    """Lets verl's Tracking write tables."""
    from verl.utils.tracking import Tracking

    replace_function(Tracking, "__init__", _tell_the_configuration)
    replace_function(Tracking, "log", _log_tables)


def _tell_the_configuration(init: Callable[..., None], own: Any, *arguments: Any, **named: Any) -> None:
    init(own, *arguments, **named)
    config = inspect.signature(init).bind(own, *arguments, **named).arguments.get("config") or {}
    parts = config.get("actor_rollout_ref") or {}
    settings = config_of((parts.get("rollout") or {}).get("custom"))
    if settings is not None and settings.token_table_steps:
        own.sis_token_tables = _tables(own, settings, parts["model"])


def _log_tables(log: Callable[..., None], own: Any, data: Any, step: int, backend: Any = None) -> None:
    log(own, data, step, backend)
    tables = getattr(own, "sis_token_tables", None)
    # Step 0 is a validation.
    if tables is not None and step:
        tables.stepped(step)


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
    assert settings.run is not None
    run_id = settings.run
    run = lambda: client.get_run(run_id).run
    return token_tables.TokenTables(client, run, settings.token_table_steps, logs)
