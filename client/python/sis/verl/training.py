"""verl's TrainingWorker, with accepted tokens at ratio 1, or a rule in the place of the clip."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, Dict, Iterable, List, Optional

import torch

import sis.torch
from sis import errors
from sis.outage import Outage
from sis.records import MissingReason, Slice, TopKRecords
from sis.run import Run, Sampling
from sis.step_counts import StepCounts
from sis.token_weights import TokenWeights
from sis.verl.generated import Generated, generated_in, logits_shown
from sis.verl.mini_batch import MiniBatch
from sis.verl.names import name_in, name_of, session_of
from sis.verl.own_sets import OwnSets
from sis.verl.refusals import check_engine, check_parallel, check_split
from sis.verl.settings import Settings, vocabulary_size
from sis.verl.vocabulary import Vocabulary
from sis.versions import warn_unless_tested

# Errors that no later call can mend: of the configuration, not of a server that is away.
_WRONG = (errors.InvalidArgument, errors.AlreadyExists)


def attach(worker: Any, settings: Settings, truncated: bool = False) -> Training:
    """Lets the training steps of a TrainingWorker use SIS, whatever its loss is, as long as that
    reads `old_log_probs` and `advantages` as verl's `ppo_loss` does.

    Each of its processes must call this once, after `worker.reset()`, and before the training's
    first rollouts are recorded: a run in which another one has evaluated or told a policy version
    begins anew, as the next incarnation. ValueError for an engine that sis.verl.refusals.check_engine
    refuses.

    truncated: whether rollouts leave tokens out by top-p or top-k. With sets of the engine the log-probs that
    the loss gets are then of the policy renormalised over the others, which a reference model's are not: the
    loss must not compare them (use_kl_loss), and settings.mass must be 0.
    """
    warn_unless_tested("verl", "verl")
    check_engine(worker.engine_config, worker.model_config)
    check_parallel(settings.sets, worker.engine_config.get("ulysses_sequence_parallel_size", 1))
    truncated = truncated and settings.sets == "engine"
    check_split(worker.engine_config["strategy"], settings, truncated)
    if truncated and 0 < settings.mass < 1:
        raise ValueError(
            f"mass is {settings.mass}, and rollouts leave tokens out: a cut set doesn't tell which were kept. Set it to 0"
        )
    return Training(worker, settings, truncated)


class Training:
    """What `attach` gives a worker.

    A mini-batch is a draw: the number of the optimiser's step, or one more than the last. What it
    does is known to the service before the first micro-batch: all that is recorded of it is fetched
    and kept once. A server that gives no answer costs the mini-batch its decisions, not the
    training: its tokens keep their importance ratios, and count as missing.
    """

    def __init__(self, worker: Any, settings: Settings, truncated: bool) -> None:
        self._settings = settings
        self.truncated = truncated
        self.weights = TokenWeights.of(settings)
        self.vocabulary = Vocabulary.of(worker.engine_config["strategy"])
        self._own_sets = settings.sets == "trainer"
        # In verl's data: what ratios are to.
        self.sampling = "old_log_probs" if self._own_sets else "rollout_log_probs"
        # Of the mini-batch, on this rank.
        self.counts = StepCounts()
        self._client = settings.client()
        self._outage = Outage()
        self._vocabulary_size = vocabulary_size(worker.model_config.hf_config)
        self._run: Optional[Run] = None
        # 0: whichever is there.
        self._incarnation = 0
        self._engine = worker.engine
        self._draw = -1
        # Names of what was trained on since the last release.
        self._used: Dict[str, None] = {}
        self._engine.train_batch = functools.partial(self._train_batch, self._engine.train_batch)
        worker.train_mini_batch = functools.partial(self._train_mini_batch, worker.train_mini_batch)
        if self._own_sets:
            worker.infer_batch = functools.partial(self._infer_batch, worker.infer_batch)
        self._begin()

    @property
    def draw(self) -> int:
        """Of the last mini-batch; what Client.get_step takes. -1 before the first."""
        return self._draw

    @property
    def run(self) -> Optional[Run]:
        """None as long as no server has answered."""
        return self._run

    def release(self) -> None:
        """Lets the service forget what was trained on. Called after verl's train_mini_batch; who
        calls train_batch alone should call it after the last step on a batch."""
        used, self._used = list(self._used), {}
        if used and self._run is not None and self._settings.release:
            self._asked("release", lambda run: self._client.release(run, used))

    def close(self) -> None:
        self._client.close()

    def _begin(self) -> None:
        """Opens the run, where a server answers, as the same incarnation on all ranks: the next one
        if it is of a training before, whose versions and draws this one's would fall behind."""
        chosen: List[Optional[int]] = [None]
        together = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
        if not together or torch.distributed.get_rank() == 0:
            chosen = [self._next_incarnation()]
        if together:
            torch.distributed.broadcast_object_list(chosen, src=0)
        if chosen[0] is not None:
            self._incarnation = chosen[0]
            self._asked("open", lambda run: run)

    def _next_incarnation(self) -> Optional[int]:
        """None without a server."""
        try:
            status = self._client.get_run(self._settings.run)
        except errors.NotFound:
            return 0
        except errors.Error:
            # Of a server that refuses the call the first one that matters tells.
            return None
        used = status.policy_version > 0 or status.last_draw is not None
        return status.run.incarnation + 1 if used else 0

    def _train_mini_batch(self, stock: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return stock(*arguments, **named)
        finally:
            self.release()

    def _train_batch(self, stock: Callable[..., Any], data: Any, loss_function: Callable[..., Any]) -> Any:
        """Of the engine: one optimiser step."""
        from verl.utils import tensordict_utils

        if tensordict_utils.get(data, "distillation_use_topk", False):
            raise ValueError("top-K distillation and SIS use the same hook of the engine: turn one of them off")
        self._draw = self._next_draw()
        self.counts.clear()
        mini_batch = self._mini_batch(data)
        with logits_shown(data):
            outputs = stock(data, functools.partial(mini_batch.loss, loss_function))
        # Every rank, also those whose outputs verl doesn't use: it is a collective call.
        metrics = mini_batch.metrics()
        if self._engine.is_mp_src_rank_with_outputs():
            outputs["metrics"].update({f"sis/{name}": [value] for name, value in metrics.items()})
        return outputs

    def _infer_batch(self, stock: Callable[..., Any], data: Any) -> Any:
        """Of the worker: old log-probs, whose sets are recorded meanwhile."""
        from verl.utils import tensordict_utils

        get = functools.partial(tensordict_utils.get, data)
        if get("compute_loss", default=True) or get("no_lora_adapter", default=False):
            # Of an evaluation, or of a reference model.
            return stock(data)
        version, engine = self._next_draw(), self._engine
        own = OwnSets(generated_in(data, None), self._settings.top_k, version)
        infer = engine.infer_batch
        engine.infer_batch = lambda data, loss_function=None: infer(data, loss_function=own.loss)
        try:
            with logits_shown(data):
                outputs = stock(data)
        finally:
            engine.infer_batch = infer
        self._asked("record", lambda run: self._append(run, own, version))
        return outputs

    def _append(self, run: Run, own: OwnSets, version: int) -> None:
        self._client.advance_version(run, version)
        recorded = itertools.chain.from_iterable(own.entries.values())
        sampling, timeout = Sampling("processed"), self._settings.timeout
        self._client.append_many(run, recorded, sampling=sampling, worker="verl", retry_timeout=timeout)

    def _mini_batch(self, data: Any) -> MiniBatch:
        generated = generated_in(data, self.sampling)
        records = self.vocabulary.asked(lambda: self._records(data, generated))
        return MiniBatch(self, self._draw, generated, records)

    def _records(self, data: Any, generated: List[Generated]) -> Optional[TopKRecords]:
        """Of each its slice. None if there is nothing to fetch, or no server."""
        # What actors record has no other name than its content.
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
            # What a session's name never had, or has of other tokens: its agent loop made requests of its own,
            # or several after one context. What has gone since is missing.
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
        """To be released after the step: ranks of sequence parallelism have the same, and one does it."""
        if self._engine.is_mp_src_rank_with_outputs():
            self._used.update((name, None) for name in names)

    def _fetched(self, names: List[str], generated: List[Generated]) -> Optional[TopKRecords]:
        """By these names."""
        slices = [Slice(name, length=len(part.sampled_ids)) for name, part in zip(names, generated)]
        if not slices:
            return None
        return self._asked(
            "fetch",
            lambda run: self._client.fetch_top_k(
                run, slices, log_probs=self.truncated, keep_seconds=self._settings.keep_seconds
            ),
        )

    def evaluate(self, draw: int, records: TopKRecords, gathered: sis.torch.Gathered) -> Optional[Any]:
        """None without a server."""
        return self._asked(
            "evaluate",
            lambda run: self._client.evaluate(
                run, records, draw=draw, outputs=self.weights.outputs, **gathered._asdict()
            ),
        )

    def _asked(self, what: str, call: Callable[[Run], Any]) -> Optional[Any]:
        """What a call of the service returns; None if there is no service, of which each outage
        warns once."""
        try:
            if self._run is None:
                self._run = self._settings.create_run(self._client, self._vocabulary_size, self._incarnation)
            answer = call(self._run)
        except _WRONG:
            raise
        except errors.Error as error:
            self._outage.lost(what, f"sis.verl: {what}, draw {self._draw}: training goes on without: {error}")
            return None
        self._outage.succeeded(what)
        return answer

    def _next_draw(self) -> int:
        return max(self._draw + 1, self._optimizer_steps())

    def _optimizer_steps(self) -> int:
        """How many steps the optimiser has made; verl's checkpoints restore that. 0 if it doesn't
        count."""
        optimizer = self._engine.optimizer
        # Megatron's has no values.
        for _, state in optimizer.state.items():
            if "step" in state:
                return int(state["step"])
            break
        # Fused ones count in their groups.
        return max((int(group.get("step", 0)) for group in optimizer.param_groups), default=0)


def _sessions(data: Any) -> Optional[List[str]]:
    """Of each row, where samples went through TransferQueue; else None."""
    if "uid" not in data or "session_id" not in data:
        return None
    columns = [_listed(data[name], len(data)) for name in ("uid", "session_id")]
    return [session_of(*of_row) for of_row in zip(*columns)]


def _listed(values: Any, rows: int) -> List[Any]:
    # tensordict gives a value that is the same for all rows as one.
    found = values.tolist() if hasattr(values, "tolist") else values
    return list(found) if isinstance(found, list) else [found] * rows


def _is_of(records: TopKRecords, index: int, part: Generated) -> bool:
    """Whether the slice is recorded, as far as it is, with the tokens of the part."""
    recorded = records.sampled_ids[records.rows(index)]
    there = recorded >= 0
    return bool(there.any() and (recorded == part.sampled_ids)[there].all())
