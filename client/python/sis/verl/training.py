"""verl's TrainingWorker, with accepted tokens at ratio 1, or a rule in the place of the clip."""

from __future__ import annotations

import collections
import contextlib
import functools
import math
from typing import Any, Callable, Counter, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
import torch

import sis.torch
from sis import entries, errors, recomputed
from sis.engines.lists import stretches
from sis.outage import Outage
from sis.records import MissingReason, Slice, TopKRecords
from sis.run import Run, Sampling
from sis.score_centering import centering
from sis.step_counts import StepCounts
from sis.token_weights import Decided, TokenWeights
from sis.top_k import TopK
from sis.verl.names import name_in, name_of, session_of
from sis.verl.refusals import centering_limit, check_engine, check_parallel
from sis.verl.settings import Settings, vocabulary_size
from sis.versions import warn_unless_tested

# In verl's data: which row of the mini-batch a row of a micro-batch is; and in its model outputs, per
# token, as 0 and 1 what was accepted, where weights need it the acceptance probability, the log-prob
# over what the sampler kept, +inf where the record doesn't tell, and what score centering adds to log-probs.
_ROW = "sis_row"
_ACCEPTED = "sis_accepted"
_PROBABILITIES = "sis_probabilities"
_TRUNCATED = "sis_truncated"
_CENTERING = "sis_centering"
# Errors that no later call can mend: of the configuration, not of a server that is away.
_WRONG = (errors.InvalidArgument, errors.AlreadyExists)


def attach(
    worker: Any, settings: Settings, truncated: bool = False, actor: Optional[Mapping[str, Any]] = None
) -> Training:
    """Lets the training steps of a TrainingWorker use SIS, whatever its loss is, as long as that
    reads `old_log_probs` and `advantages` as verl's `ppo_loss` does.

    Each of its processes must call this once, after `worker.reset()`, and before the training's
    first rollouts are recorded: a run in which another one has evaluated or told a policy version
    begins anew, as the next incarnation. ValueError for an engine that sis.verl.refusals.check_engine
    refuses.

    truncated: whether rollouts leave tokens out by top-p or top-k. With sets of the engine the log-probs that
    the loss gets are then of the policy renormalised over the others, which a reference model's are not: the
    loss must not compare them (use_kl_loss), and settings.mass must be 0.

    actor: verl's configuration of the loss. settings.score_centering needs it.
    """
    warn_unless_tested("verl", "verl")
    check_engine(worker.engine_config, worker.model_config)
    check_parallel(settings.sets, worker.engine_config.ulysses_sequence_parallel_size)
    truncated = truncated and settings.sets == "engine"
    if truncated and 0 < settings.mass < 1:
        raise ValueError(
            f"mass is {settings.mass}, and rollouts leave tokens out: a cut set doesn't tell which were kept. Set it to 0"
        )
    return Training(worker, settings, truncated, centering_limit(settings, actor))


class Training:
    """What `attach` gives a worker.

    A mini-batch is a draw: the number of the optimiser's step, or one more than the last. What it
    does is known to the service before the first micro-batch: all that is recorded of it is fetched
    and leased once. A server that gives no answer costs the mini-batch its decisions, not the
    training: its tokens keep their importance ratios, and count as missing.
    """

    def __init__(self, worker: Any, settings: Settings, truncated: bool, centering_limit: Optional[float]) -> None:
        self._settings = settings
        self.truncated = truncated
        # With score centering the largest weight, else None.
        self.centering_limit = centering_limit
        self.weights = TokenWeights.of(settings)
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
        try:
            with _logits_shown(data):
                outputs = stock(data, functools.partial(mini_batch.loss, loss_function))
        finally:
            mini_batch.end()
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
        own = OwnSets(_generated(data, None), self._settings.top_k, version)
        infer = engine.infer_batch
        engine.infer_batch = lambda data, loss_function=None: infer(data, loss_function=own.loss)
        try:
            with _logits_shown(data):
                outputs = stock(data)
        finally:
            engine.infer_batch = infer
        append = functools.partial(self._client.append_many, sampling=Sampling("processed"))
        self._asked("tell the policy version", lambda run: self._client.advance_version(run, version))
        self._asked("record", lambda run: append(run, own.entries))
        return outputs

    def _mini_batch(self, data: Any) -> MiniBatch:
        generated = _generated(data, self.sampling)
        # What actors record has no other name than its content.
        sessions = None if self._own_sets else _sessions(data)
        names = [
            name_of(part.context, part.sampled_ids, part.log_probs)
            if sessions is None
            else name_in(sessions[part.row], part.context)
            for part in generated
        ]
        if self._own_sets:
            times: Counter[str] = collections.Counter()
            names = [_distinct(name, times) for name in names]
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
                if records.lease_id:
                    self.end_lease(records.lease_id)
                records = self._fetched(names, generated)
        self._use(names)
        return MiniBatch(self, self._draw, generated, records)

    def _use(self, names: Iterable[str]) -> None:
        """To be released after the step: ranks of sequence parallelism have the same, and one does it."""
        if self._engine.is_mp_src_rank_with_outputs():
            self._used.update((name, None) for name in names)

    def _fetched(self, names: List[str], generated: List[_Generated]) -> Optional[TopKRecords]:
        """Leased. None if there is nothing to fetch, or no server."""
        slices = [Slice(name, length=len(part.sampled_ids)) for name, part in zip(names, generated)]
        needs_sets = self.truncated or self.centering_limit is not None
        arrays = ("ids", "log_probs", "sampled_ids") if needs_sets else ("ids", "sampled_ids")
        if not slices:
            return None
        return self._asked(
            "fetch",
            lambda run: self._client.fetch_top_k(run, slices, arrays=arrays, lease_seconds=self._settings.lease_seconds),
        )

    def evaluate(self, draw: int, records: TopKRecords, gathered: sis.torch.Gathered) -> Optional[Any]:
        """None without a server."""
        return self._asked(
            "evaluate",
            lambda run: self._client.evaluate(
                run, records, draw=draw, outputs=self.weights.outputs, **gathered._asdict()
            ),
        )

    def end_lease(self, lease_id: int) -> None:
        self._asked("release", lambda run: self._client.release(run, lease_ids=[lease_id]))

    def _asked(self, what: str, call: Callable[[Run], Any]) -> Optional[Any]:
        """What a call of the service returns; None if there is no service, of which each outage
        warns once."""
        try:
            if self._run is None:
                self._run = self._settings.create_run(
                    self._client, self._vocabulary_size, self._incarnation
                )
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
        for state in self._engine.optimizer.state.values():
            return int(state.get("step", 0))
        return 0


class _Generated(NamedTuple):
    """What one request of the rollout generated: a stretch of tokens that the mask has."""

    # Of the mini-batch.
    row: int
    # Of the first generated token among all tokens of the row; above 0.
    start: int
    # int64 [start], int64 [T], float32 [T] (nats; NaN before they are known).
    context: np.ndarray
    sampled_ids: np.ndarray
    log_probs: np.ndarray


class _Stretches:
    def __init__(self, generated: List[_Generated]) -> None:
        self._generated = generated
        self._of_row: Dict[int, List[int]] = {}
        for index, part in enumerate(generated):
            self._of_row.setdefault(part.row, []).append(index)

    def _parts(self, logits: torch.Tensor, data: Any) -> Tuple[List[Tuple[int, int, int]], torch.Tensor]:
        """Of a micro-batch what logits [n, V] are of: (stretch, its first position, how many), and int64 [N], which
        of the n. With sequence parallelism each rank has n of all tokens, one after the other."""
        from verl.utils.ulysses import get_ulysses_sequence_parallel_rank

        begin = get_ulysses_sequence_parallel_rank() * len(logits)
        end = begin + len(logits)
        chosen: List[Tuple[int, int, int]] = []
        places = [np.empty(0, np.int64)]
        for index, first in self._places(data):
            start, stop = max(first, begin), min(first + len(self._generated[index].sampled_ids), end)
            if start < stop:
                chosen.append((index, start - first, stop - start))
                places.append(np.arange(start, stop) - begin)
        return chosen, torch.from_numpy(np.concatenate(places)).to(logits.device)

    def _places(self, data: Any) -> Iterator[Tuple[int, int]]:
        """The stretches of a micro-batch, and where, among all of its tokens, the logits of their first stand: one
        before it."""
        for row, offset in zip(data[_ROW].tolist(), data["input_ids"].offsets().tolist()):
            for index in self._of_row.get(row, ()):
                yield index, offset + self._generated[index].start - 1


class OwnSets(_Stretches):
    """Of a batch, on one rank: the actor's most probable tokens, before the first update."""

    def __init__(self, generated: List[_Generated], top_k: int, version: int) -> None:
        super().__init__(generated)
        self._top_k = top_k
        self._version = version
        self._found: Dict[int, Tuple[int, TopK]] = {}
        self._times: Counter[str] = collections.Counter()
        # For Client.append_many.
        self.entries: List[entries.AppendEntry] = []

    def loss(
        self,
        model_output: Any = None,
        data: Any = None,
        dp_group: Any = None,
        student_logits: Optional[torch.Tensor] = None,
        data_format: str = "thd",
    ) -> Any:
        """Called as MiniBatch.loss is, where verl wants none."""
        if student_logits is not None:
            self._found = self._sets(student_logits[0], data)
            return {}
        log_probs = model_output["log_probs"].values().float().cpu().numpy()
        for index, first in self._places(data):
            part = self._generated[index]
            length = len(part.sampled_ids)
            name = name_of(part.context, part.sampled_ids, log_probs[first : first + length])
            name = _distinct(name, self._times)
            if index in self._found:
                start, record = self._found[index]
                self.entries += [entries.Block(name, start, self._version, *record), entries.Seal(name, length)]
        return torch.tensor(1.0), {}

    def _sets(self, logits: torch.Tensor, data: Any) -> Dict[int, Tuple[int, TopK]]:
        """By stretch: from which position on this rank has it."""
        parts, at = self._parts(logits, data)
        if not parts:
            return {}
        tokens = np.concatenate([self._generated[index].sampled_ids[first : first + n] for index, first, n in parts])
        gather = lambda records: sis.torch.gather(records, logits, rows=at)
        record = recomputed.record(at, lambda rows: logits[rows], gather, torch.from_numpy(tokens), self._top_k)
        ends = np.cumsum([length for _, _, length in parts])
        return {
            index: (first, TopK(*(array[end - length : end] for array in record)))
            for (index, first, length), end in zip(parts, ends)
        }


class MiniBatch(_Stretches):
    """One draw on one rank."""

    def __init__(
        self, training: Training, draw: int, generated: List[_Generated], records: Optional[TopKRecords]
    ) -> None:
        """`records`: one slice per stretch; None if they couldn't be fetched."""
        super().__init__(generated)
        self._training = training
        self._draw = draw
        self._records = records
        self._lease_id = records.lease_id if records is not None else 0
        self._device: Any = "cpu"

    def loss(
        self,
        stock: Callable[..., Any],
        model_output: Any = None,
        data: Any = None,
        dp_group: Any = None,
        student_logits: Optional[torch.Tensor] = None,
        data_format: str = "thd",
    ) -> Any:
        """What verl's engine calls twice per micro-batch: with the logits, and for the loss."""
        if student_logits is not None:
            return {name: values[None] for name, values in self._decisions(student_logits[0], data).items()}
        if self._training.truncated:
            model_output["log_probs"] = _renormalised(model_output["log_probs"], model_output[_TRUNCATED])
        if self._training.centering_limit is not None:
            log_probs = model_output["log_probs"]
            values = log_probs.values() + model_output[_CENTERING].values()
            model_output["log_probs"] = torch.nested.nested_tensor_from_jagged(values, log_probs.offsets())
        changed = _substituted(model_output, data, self._training.weights, self._training.sampling)
        return stock(model_output=model_output, data=changed, dp_group=dp_group)

    def _decisions(self, logits: torch.Tensor, data: Any) -> Dict[str, torch.Tensor]:
        """The model outputs that are SIS's, float32 [n] of the token after a position, _TRUNCATED and
        _CENTERING with gradients; of logits [n, V], divided by the temperature, of all rows of the micro-batch one
        after the other. With sequence parallelism each rank has n of them, padded at the end, and verl gathers what all
        have found."""
        self._device = logits.device
        outputs = {_ACCEPTED: torch.zeros(len(logits), device=logits.device)}
        if len(self._training.weights.outputs) > 1:
            outputs[_PROBABILITIES] = torch.zeros(len(logits), device=logits.device)
        if self._training.truncated:
            outputs[_TRUNCATED] = torch.full((len(logits),), torch.inf, device=logits.device)
        if self._training.centering_limit is not None:
            outputs[_CENTERING] = torch.zeros(len(logits), device=logits.device)
        chosen, at = self._parts(logits, data)
        if not chosen:
            return outputs
        evaluation = None
        if self._records is not None:
            records = self._records.cut(chosen)
            gathered = sis.torch.gather(records, logits, rows=at, padded=self._training.truncated)
            if self._training.truncated:
                replay = sis.torch.replayed(records, gathered)
                gathered = replay.current
                kept = _over_the_kept(records, replay.complete, logits, at)
                outputs[_TRUNCATED] = outputs[_TRUNCATED].index_copy(0, at, kept)
                self._training.counts.add_replayed(records, replay.complete)
            evaluation = self._training.evaluate(self._draw, records, gathered)
        self._training.counts.add(evaluation, len(at))
        if evaluation is None:
            # The rest of the mini-batch doesn't wait for the server again.
            self._records = None
            return outputs
        outputs[_ACCEPTED][at] = sis.torch.tensor(evaluation.accepted, logits.device).float()
        if _PROBABILITIES in outputs:
            outputs[_PROBABILITIES][at] = sis.torch.tensor(evaluation.acceptance_probabilities, logits.device)
        if _CENTERING in outputs:
            sampling = [self._generated[index].log_probs[start : start + length] for index, start, length in chosen]
            decided = {name: values[at] for name, values in outputs.items()}
            shift = self._centering(records, logits[at], np.concatenate(sampling), decided)
            outputs[_CENTERING] = outputs[_CENTERING].index_copy(0, at, shift)
        return outputs

    def _centering(
        self, records: TopKRecords, logits: torch.Tensor, sampling: np.ndarray, decided: Dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """float32 [N]; logits: [N, V], a copy: verl may overwrite its own in the backward pass. sampling: nats
        [N]; decided: outputs of _decisions, of the same tokens."""
        limit, weights = self._training.centering_limit, self._training.weights
        assert limit is not None
        current = sis.torch.log_probs_at(records, logits)
        if self._training.truncated:
            current = sis.torch.replayed(records, current).current
        weight = sis.torch.selective_weight(records, current, limit, weights.weight == "expected")
        center = sis.torch.score_center(records, current, weight)
        own, accepted = current.sampled_log_probs.detach(), decided[_ACCEPTED].bool()
        probabilities = decided.get(_PROBABILITIES, torch.zeros_like(own))
        old = weights.old_log_probs(Decided(own, sis.torch.tensor(sampling, own.device), accepted, probabilities))
        return centering(own, old, center, limit)

    def end(self) -> None:
        if self._lease_id:
            self._training.end_lease(self._lease_id)

    def metrics(self) -> Dict[str, float]:
        """Over all ranks: no two have the same tokens. Means are per scored token, and left out if there is
        none."""

        def summed(numbers: List[float]) -> List[float]:
            everywhere = torch.tensor(numbers, dtype=torch.float64, device=self._device)
            torch.distributed.all_reduce(everywhere)
            return everywhere.tolist()

        metrics = self._training.counts.metrics(summed, self._training.truncated)
        return {"missing": 0.0, **{name: value for name, value in metrics.items() if not math.isnan(value)}}


@contextlib.contextmanager
def _logits_shown(data: Any) -> Iterator[None]:
    """Meanwhile verl's engine calls the loss of these rows with their logits too."""
    from verl.utils import tensordict_utils

    unset = "distillation_use_topk" not in data
    tensordict_utils.assign_non_tensor(data, distillation_use_topk=True)
    data[_ROW] = torch.arange(len(data), device=data.device)
    try:
        yield
    finally:
        data.pop(_ROW)
        if unset:
            data.pop("distillation_use_topk")
        else:
            tensordict_utils.assign_non_tensor(data, distillation_use_topk=False)


def _over_the_kept(
    records: TopKRecords, complete: torch.Tensor, logits: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """float32 [N], with gradients: the sampled tokens' log-probs among the recorded ones, which are all that
    the sampler kept; +inf where they are not. Their normalisation needs no other logits."""
    ids, sampled = (torch.from_numpy(array).to(logits.device).long() for array in (records.ids, records.sampled_ids))
    of_set = logits[rows[:, None], ids.clamp(min=0)].float().masked_fill(ids < 0, -torch.inf)
    of_sampled = logits[rows, sampled.clamp(min=0)].float()
    current = sis.torch.replayed(records, sis.torch.Gathered(of_set, of_sampled)).current
    return current.sampled_log_probs.masked_fill(~complete, torch.inf)


def _renormalised(log_probs: torch.Tensor, truncated: torch.Tensor) -> torch.Tensor:
    """Nested, both: the first where the second is +inf."""
    values = torch.where(torch.isinf(truncated.values()), log_probs.values(), truncated.values())
    return torch.nested.nested_tensor_from_jagged(values, log_probs.offsets())


def _substituted(model_output: Any, data: Any, weights: TokenWeights, sampling: str) -> Any:
    """`data` with the log-probs of sampling, data[sampling], as old ones, and those of the present policy where it is
    as if that had sampled the token: there the ratio is 1, and its gradient that of the log-prob. By a rule
    of `weights` that is so everywhere, and advantages have its coefficients."""
    from verl.workers.utils.padding import no_padding_2_padding

    if "rollout_is_weights" in data and sampling == "rollout_log_probs":
        raise ValueError(
            "algorithm.rollout_correction weights the tokens too, which corrects twice: "
            "set its rollout_is and rollout_rs to null"
        )
    log_prob = no_padding_2_padding(model_output["log_probs"], data).detach()
    accepted = no_padding_2_padding(model_output[_ACCEPTED], data).bool()
    probabilities = torch.zeros_like(log_prob)
    if _PROBABILITIES in model_output:
        probabilities = no_padding_2_padding(model_output[_PROBABILITIES], data)

    def padded(values: torch.Tensor) -> torch.Tensor:
        return values.to_padded_tensor(0.0, output_size=log_prob.shape) if values.is_nested else values

    decided = Decided(log_prob, padded(data[sampling]), accepted, probabilities)
    changed = data.copy()
    changed["old_log_probs"] = weights.old_log_probs(decided)
    if weights.rule is not None:
        changed["advantages"] = weights.advantages(decided, padded(data["advantages"]))
    return changed


def _generated(data: Any, sampling: Optional[str]) -> List[_Generated]:
    """The stretches of generated tokens of a mini-batch, in the order of its rows, with data[sampling]. None: with
    none."""
    if sampling == "rollout_log_probs" and sampling not in data:
        raise ValueError("the batch has no rollout_log_probs: set actor_rollout_ref.rollout.calculate_log_probs=true")
    every = data["input_ids"]
    tokens, ends = every.values().cpu().numpy(), every.offsets().tolist()
    found = []
    masks = _rows(data["response_mask"])
    unknown = [np.full(len(mask), np.nan, np.float32) for mask in masks]
    values = unknown if sampling is None else _rows(data[sampling].float())
    for row, (mask, log_probs) in enumerate(zip(masks, values)):
        own = tokens[ends[row] : ends[row + 1]]
        length = _response_length(data, row)
        for first, last in stretches(mask[:length]):
            start = len(own) - length + first
            stop = start + last - first
            found.append(_Generated(row, start, own[:start], own[start:stop], log_probs[first:last]))
    return found


def _distinct(name: str, times: Counter[str]) -> str:
    """The name, with a number if it comes again, as of samples that are alike. times: of all before."""
    times[name] += 1
    return name if times[name] == 1 else f"{name}.{times[name]}"


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


def _is_of(records: TopKRecords, index: int, part: _Generated) -> bool:
    """Whether the slice is recorded, as far as it is, with the tokens of the part."""
    recorded = records.sampled_ids[records.rows(index)]
    there = recorded >= 0
    return bool(there.any() and (recorded == part.sampled_ids)[there].all())


def _response_length(data: Any, row: int) -> int:
    responses = data["responses"]
    if responses.is_nested:
        return int(responses.offsets()[row + 1] - responses.offsets()[row])
    return int(data["attention_mask"][row, data["prompts"].shape[1] :].sum())


def _rows(values: torch.Tensor) -> List[np.ndarray]:
    if values.is_nested:
        return [row.cpu().numpy() for row in values.unbind()]
    return list(values.cpu().numpy())
