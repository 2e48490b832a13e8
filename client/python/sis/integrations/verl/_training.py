"""verl's TrainingWorker, with accepted tokens at ratio 1, or with a rule instead of the clip."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, Dict, Iterable, List, Optional, TypeVar

from sis import _errors
from sis.integrations._config import SisConfig, vocabulary_size
from sis.integrations._names import name_in, name_of, session_of, unless_recorded
from sis.integrations._service import Service, of_the_first
from sis.integrations.verl._generated import Generated, generated_in, logits_shown
from sis.integrations.verl._mini_batch import MiniBatch
from sis.integrations.verl._own_sets import OwnSets
from sis.integrations.verl._settings import check_engine
from sis.integrations.verl._vocabulary import Vocabulary
from sis._records import MissingReason, Slice, TopKRecords
from sis._run import Run, Sampling
from sis._versions import warn_unless_tested

_Answer = TypeVar("_Answer")


def attach(worker: Any, config: SisConfig, truncated: bool = False) -> Training:
    """Lets the training steps of a TrainingWorker use SIS, with any loss that reads `old_log_probs` and `advantages` as
    verl's `ppo_loss` does.

    Each of the worker's processes must call this once, after `worker.reset()`, and before the training's first rollouts
    are recorded: a run that another training has used begins again, as the next incarnation.

    Args:
        worker: verl's TrainingWorker.
        config: Settings, with address and run.
        truncated: Whether rollouts are filtered by top-p or top-k. With sets of the engine the loss then gets log-probs
            of the policy renormalised over the kept tokens. It must not compare them with a reference model's
            (use_kl_loss), and config.mass must be 0.

    Returns:
        The handle.

    Raises:
        ValueError: SIS does not support the worker's engine or these settings.
    """
    warn_unless_tested("verl", "verl")
    truncated = truncated and config.sets == "engine"
    check_engine(worker.engine_config, worker.model_config, config, truncated)
    if truncated and 0 < config.mass < 1:
        raise ValueError(
            f"mass is {config.mass}, and rollouts leave tokens out: a cut set doesn't tell which were kept. Set it to 0"
        )
    return Training(worker, config, truncated)


class _Service(Service):
    """The calls for a run that opens when a server first answers."""

    def __init__(self, config: SisConfig, vocabulary_size: int) -> None:
        super().__init__(config, config.client(skips=False))
        self._vocabulary_size = vocabulary_size
        # 0: the one that is there.
        self.incarnation = 0

    def asked(self, loss: str, call: Callable[[], _Answer]) -> Optional[_Answer]:
        def opened() -> _Answer:
            if self.run is None:
                self.run = self.config.create_run(
                    self.client, self._vocabulary_size, self.incarnation, algorithm="verl"
                )
            return call()

        return super().asked(loss, opened)


class Training:
    """The handle that `attach` returns.

    A mini-batch is a draw, numbered by the optimiser's step, or one more than the last. Its records are fetched and
    kept once, before the first micro-batch. A server that does not answer costs the mini-batch its decisions, not the
    training: tokens keep their importance ratios, and count as missing.

    Attributes:
        config: Settings.
        truncated: Whether rollouts are filtered, and the loss gets renormalised log-probs.
        vocabulary: The ranks that share logits.
        sampling: Name, in verl's data, of the log-probs that ratios are relative to.
        service: Calls of the service; `service.client` is the `sis.Client`.
        draw: Number of the last mini-batch, for `sis.Client.list_steps`; -1 before the first.
    """

    def __init__(self, worker: Any, config: SisConfig, truncated: bool) -> None:
        """Replaces the worker's functions, and opens the run: use `attach`.

        Args:
            worker, config, truncated: As in `attach`.
        """
        self.config = config
        self.truncated = truncated
        self.vocabulary = Vocabulary.of(worker.engine_config["strategy"])
        self._own_sets = config.sets == "trainer"
        self.sampling = "old_log_probs" if self._own_sets else "rollout_log_probs"
        self.service = _Service(config, vocabulary_size(worker.model_config.hf_config))
        self.draw = -1
        self._engine = worker.engine
        # Names of the sequences of the updates since the last release.
        self._used: Dict[str, None] = {}
        self._engine.train_batch = functools.partial(self._train_batch, self._engine.train_batch)
        worker.train_mini_batch = functools.partial(self._train_mini_batch, worker.train_mini_batch)
        if self._own_sets:
            worker.infer_batch = functools.partial(self._infer_batch, worker.infer_batch)
        self._begin()

    @property
    def run(self) -> Optional[Run]:
        """The run; None until a server has answered."""
        return self.service.run

    def release(self) -> None:
        """Lets the service drop the records of the updates so far. verl's train_mini_batch calls it; callers of
        train_batch alone should call it after the last step on a batch."""
        used, self._used = list(self._used), {}
        if self.service.run is not None:
            self.service.release(used)

    def close(self) -> None:
        """Closes the client."""
        self.service.client.close()

    def _begin(self) -> None:
        """Opens the run, if a server answers, as the same incarnation on all ranks: the next one if the run is of an
        earlier training, whose versions and draws are ahead of this one's."""
        chosen = of_the_first(self._next_incarnation)
        if chosen is not None:
            self.service.incarnation = chosen
            self.service.asked("no run", lambda: None)

    def _next_incarnation(self) -> Optional[int]:
        """Returns None without a server."""
        assert self.config.run is not None
        try:
            status = self.service.client.get_run(self.config.run)
        except _errors.NotFound:
            return 0
        except _errors.Error:
            # If the server refuses the call, the first call that matters raises.
            return None
        used = status.policy_version > 0 or status.last_draw is not None
        return status.run.incarnation + 1 if used else 0

    def _train_mini_batch(self, stock: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return stock(*arguments, **named)
        finally:
            self.release()

    def _train_batch(self, stock: Callable[..., Any], data: Any, loss_function: Callable[..., Any]) -> Any:
        """Replaces the engine's train_batch: one optimiser step."""
        from verl.utils import tensordict_utils

        if tensordict_utils.get(data, "distillation_use_topk", False):
            raise ValueError("top-K distillation and SIS use the same hook of the engine: turn one of them off")
        self.draw = self._next_draw()
        self.service.counts.clear()
        mini_batch = self._mini_batch(data)
        with logits_shown(data):
            outputs = stock(data, functools.partial(mini_batch.loss, loss_function))
        # A collective call: ranks whose outputs verl ignores make it too.
        metrics = mini_batch.metrics()
        if self._engine.is_mp_src_rank_with_outputs():
            outputs["metrics"].update({f"sis/{name}": [value] for name, value in metrics.items()})
        return outputs

    def _infer_batch(self, stock: Callable[..., Any], data: Any) -> Any:
        """Replaces the worker's infer_batch: computes old log-probs, and records their sets."""
        from verl.utils import tensordict_utils

        get = functools.partial(tensordict_utils.get, data)
        if get("compute_loss", default=True) or get("no_lora_adapter", default=False):
            # An evaluation, or a reference model.
            return stock(data)
        version, engine = self._next_draw(), self._engine
        own = OwnSets(generated_in(data, None), self.config.top_k, version)
        infer = engine.infer_batch
        engine.infer_batch = lambda data, loss_function=None: infer(data, loss_function=own.loss)
        try:
            with logits_shown(data):
                outputs = stock(data)
        finally:
            engine.infer_batch = infer
        self.service.advance_version(version)
        recorded = list(itertools.chain.from_iterable(own.entries.values()))
        append = functools.partial(self.service.append, worker="verl", retry_timeout=self.config.timeout)
        unless_recorded(lambda: append(recorded, Sampling("processed")))
        return outputs

    def _mini_batch(self, data: Any) -> MiniBatch:
        generated = generated_in(data, self.sampling, self.config.observe)
        records = self.vocabulary.asked(lambda: self._records(data, generated))
        return MiniBatch(self, generated, records)

    def _records(self, data: Any, generated: List[Generated]) -> Optional[TopKRecords]:
        """Returns one slice for each; None if there is nothing to fetch, or no server."""
        # Sequences that actors record are named by their content.
        sessions = None if self._own_sets else _sessions(data)
        names = [
            (
                name_of(part.context, part.sampled_ids, part.log_probs)
                if sessions is None
                else name_in(sessions[part.row], part.context)
            )
            for part in generated
        ]
        records = self._fetched(names, generated)
        if sessions is not None and records is not None:
            # Slices that a session's name never had, or has with other tokens: its agent loop made requests of its
            # own, or several after one context. A slice that is gone stays missing.
            gone = {part.slice for part in records.missing if part.reason != MissingReason.NEVER_ARRIVED}
            others = [
                index for index, part in enumerate(generated) if index not in gone and not _is_of(records, index, part)
            ]
            self._use(names[index] for index in others)
            for index in others:
                part = generated[index]
                names[index] = name_of(part.context, part.sampled_ids, part.log_probs)
            if others:
                records = self._fetched(names, generated)
        self._use(names)
        return records

    def _use(self, names: Iterable[str]) -> None:
        """Notes names to release. Ranks of sequence parallelism have the same names, and one rank releases them."""
        if self._engine.is_mp_src_rank_with_outputs():
            self._used.update((name, None) for name in names)

    def _fetched(self, names: List[str], generated: List[Generated]) -> Optional[TopKRecords]:
        slices = [Slice(name, length=len(part.sampled_ids)) for name, part in zip(names, generated)]
        return self.service.fetch(slices, log_probs=self.truncated) if slices else None

    def _next_draw(self) -> int:
        return max(self.draw + 1, self._optimizer_steps())

    def _optimizer_steps(self) -> int:
        """Returns the number of the optimiser's steps, which verl's checkpoints restore; 0 if it does not count."""
        optimizer = self._engine.optimizer
        # The state of Megatron's optimiser has no values().
        for _, state in optimizer.state.items():
            if "step" in state:
                return int(state["step"])
            break
        # Fused optimisers count in their groups.
        return max((int(group.get("step", 0)) for group in optimizer.param_groups), default=0)


def _sessions(data: Any) -> Optional[List[str]]:
    """Returns the session of each row; None if samples did not go through TransferQueue."""
    if "uid" not in data or "session_id" not in data:
        return None
    columns = [_listed(data[name], len(data)) for name in ("uid", "session_id")]
    return [session_of(*of_row) for of_row in zip(*columns)]


def _listed(values: Any, rows: int) -> List[Any]:
    # tensordict returns one value if it is the same for all rows.
    found = values.tolist() if hasattr(values, "tolist") else values
    return list(found) if isinstance(found, list) else [found] * rows


def _is_of(records: TopKRecords, index: int, part: Generated) -> bool:
    """Returns whether the recorded positions of the slice have the tokens of the part."""
    recorded = records.sampled_ids[records.rows(index)]
    there = recorded >= 0
    return bool(there.any() and (recorded == part.sampled_ids)[there].all())
