"""Tables of tokens and metrics by age, of sis.tracking, in the experiment trackers that a trainer has open."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Sequence, Tuple, Union

from sis import tracking
from sis._client import Client
from sis._inspection import TokenCounts
from sis._outage import Outage
from sis._run import Run

TRACKERS = ("wandb", "trackio", "mlflow", "tensorboard")


def check_trackers(steps: int, trackers: Union[str, Iterable[str]], setting: str) -> None:
    """Raises ValueError if tables are wanted and none of `trackers`, which the setting `setting` names, takes them."""
    if steps < 0:
        raise ValueError(f"token_table_steps is {steps}, must be 0, for no tables, or more")
    named = [trackers] if isinstance(trackers, str) else list(trackers)
    if steps and not set(named) & set(TRACKERS):
        raise ValueError(
            f"token_table_steps is {steps}, but {setting} is {named}: add {', '.join(TRACKERS[:-1])} or {TRACKERS[-1]}, "
            "which take tables, or set it to 0"
        )


def open_logs(trackers: Iterable[str], text: Callable[[int], str], writer: Any = None) -> Dict[str, tracking.Log]:
    """Returns the logs, by tracker, of those that have a run open in this process. writer: TensorBoard's."""
    return {name: log for name in trackers if (log := _open_log(name, text, writer)) is not None}


def _open_log(tracker: str, text: Callable[[int], str], writer: Any) -> Optional[tracking.Log]:
    if tracker == "wandb":
        import wandb

        return None if wandb.run is None else tracking.to_wandb(wandb.run, text)
    if tracker == "trackio":
        from trackio import context_vars

        run = context_vars.current_run.get()
        return None if run is None else tracking.to_trackio(run, text)
    if tracker == "mlflow":
        import mlflow

        run = mlflow.active_run()
        return None if run is None else tracking.to_mlflow(run.info.run_id, text)
    return tracking.to_tensorboard(writer, text) if tracker == "tensorboard" and writer is not None else None


class TokenTables:
    """The tables of one process of a training."""

    def __init__(
        self, client: Client, run: Callable[[], Run], steps: int, logs: Callable[[], Mapping[str, tracking.Log]]
    ) -> None:
        """`run` and `logs` are called for each table."""
        self._client = client
        self._run = run
        self._steps = steps
        self._logs = logs
        self._outage = Outage()
        self._last = 0

    def stepped(self, step: int) -> None:
        """Call this once or more after each step, from 1 on."""
        if step % self._steps or step == self._last:
            return
        self._last = step
        found = self._outage.asked("no table of tokens", self._ask)
        if found is not None and any(found):
            for log in self._logs().values():
                log(step, *found)

    def _ask(self) -> Tuple[Dict[str, float], Sequence[TokenCounts]]:
        run = self._run()
        draw = self._client.get_run(run.id).last_draw
        ages = {} if draw is None else tracking.age_metrics(self._client.list_steps(run, draws=[draw])[draw])
        return ages, self._client.inspect_run(run).tokens
