"""Tables of tokens in the trackers of `report_to`."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from sis import tracking
from sis._inspection import TokenCounts
from sis.integrations import _token_tables as token_tables


class TokenTablesCallback(TrainerCallback):
    """Writes the tables of one of this package's trainers, in its main process."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        run, steps = lambda: trainer.sis_run, trainer._sis_config.token_table_steps
        self._tables = token_tables.TokenTables(trainer.sis_client, run, steps, self._logs)

    def on_step_end(self, _arguments: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._tables.stepped(state.global_step)

    def _logs(self) -> Dict[str, tracking.Log]:
        tokenizer = getattr(self._trainer.processing_class, "tokenizer", self._trainer.processing_class)
        writers = [
            callback.tb_writer
            for callback in self._trainer.callback_handler.callbacks
            if isinstance(callback, TensorBoardCallback)
        ]
        logs = token_tables.open_logs(
            self._trainer.args.report_to, lambda token: tokenizer.decode([token]), writers[0] if writers else None
        )
        for name in logs.keys() & {"wandb", "trackio"}:
            logs[name] = _uncounted(logs[name])
        return logs


def _uncounted(log: tracking.Log) -> tracking.Log:
    """Wraps the log of a tracker that counts steps itself under transformers, and takes no earlier one."""

    def logged(step: Optional[int], metrics: Mapping[str, float], tokens: Sequence[TokenCounts] = ()) -> None:
        log(None, metrics, tokens)

    return logged
