"""On-policy distillation in TRL from teachers elsewhere, whose log-probs the service keeps.

    from sis.engines.teachers import VllmServerTeacher
    from sis.trl.distillation import SisDistillationTrainer

    teacher = VllmServerTeacher("http://teacher:8000", "Qwen/Qwen3-8B")
    trainer = SisDistillationTrainer(
        model=name, args=args, train_dataset=dataset, teachers={"teacher": teacher}, sis_config=SisConfig(top_k=64)
    )
    trainer.train()

docs/trl.md says what it does and refuses.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint
from trl import DistillationTrainer

import sis.torch
from sis.engines.teachers import Scored, Teacher, Tokens
from sis.gathered import Gathered
from sis.logit_transform import LogitTransform
from sis.records import TopKRecords
from sis.run import Sampling, check_id, label_of
from sis.trl import refusals
from sis.trl.config import SisConfig
from sis.trl.connection import ConnectedMixin, agreed
from sis.trl.decisions import Head, whole_head
from sis.trl.rollouts import Block, Rollout, Rollouts

# Logits that are worked on at a time: 64 MiB of float32.
_CHUNK_ELEMENTS = 1 << 24


class _Taught(NamedTuple):
    """By one teacher, of the N positions of a micro-batch."""

    records: TopKRecords
    # int64 [M]: which positions the records are of.
    rows: torch.Tensor


@dataclasses.dataclass
class _Sums:
    """Of one teacher's positions in an optimiser step, on this rank."""

    divergence: float = 0.0
    teacher_tail: float = 0.0
    student_tail: float = 0.0
    scored: float = 0.0
    missing: float = 0.0


class SisDistillationMixin(ConnectedMixin):
    """Goes before DistillationTrainer, or a subclass of it, among the bases.

    The student generates, the teachers say what they think of its tokens, and their K most probable
    tokens of every position are recorded, each teacher's in a run of its own. The loss is TRL's divergence
    of that `beta` over these tokens and one for all others (sis.distillation), summed and divided as TRL
    does: exact where K is the vocabulary, else never above it.
    """

    def __init__(
        self,
        *args: Any,
        teachers: Mapping[str, Teacher],
        teacher_weights: Optional[Mapping[str, float]] = None,
        sis_config: Optional[SisConfig] = None,
        **kwargs: Any,
    ) -> None:
        """`teachers`: by names of [A-Za-z0-9._-], of sis.engines.teachers, or any such function. The loss
        is the sum of their divergences times `teacher_weights`, 1 where one isn't there. A prompt whose
        row of the dataset has a "teacher" has that one only. sis_config: SisConfig() if left out. All
        else is DistillationTrainer's. ValueError for what it would not do as asked."""
        weights = {name: 1.0 for name in teachers}
        weights.update(teacher_weights or {})
        if not teachers:
            raise ValueError("teachers is empty: name one")
        if weights.keys() != teachers.keys():
            raise ValueError(f"teacher_weights names {sorted(weights.keys() - teachers.keys())}, which are no teachers")
        for name in teachers:
            check_id(name)
        super().__init__(*args, sis_config=sis_config, **kwargs)
        self._sis_teachers, self._sis_weights = dict(teachers), weights
        rank = self.accelerator.process_index
        # Evaluation has its own: it comes amid rollouts that the training still uses.
        self._sis_rollouts: Dict[bool, Dict[str, Rollouts]] = {True: {}, False: {}}
        connection, config = self._sis_connection, self._sis_config
        for name in teachers:
            of_teacher = dataclasses.replace(config, address=connection.addresses, run=f"{connection.run_id}-{name}")
            settings = {**self._sis_run_settings(), "model": label_of(name)}
            run = self._sis_create_run(agreed(self.accelerator, self.args, of_teacher), **settings)
            for training, prefix in ((True, ""), (False, "evaluation-")):
                own = Rollouts(self.sis_client, run, rank, config.lease_seconds, prefix)
                self._sis_rollouts[training][name] = own
        self._sis_sums = {name: _Sums() for name in teachers}

    def _sis_check_arguments(self, arguments: Any) -> None:
        super()._sis_check_arguments(arguments)
        refusals.check_deepspeed(arguments)
        _check_arguments(arguments, self._sis_config)

    def _sis_check_trainer(self) -> None:
        super()._sis_check_trainer()
        if self.teacher_model is not None:
            raise ValueError(
                "teacher_model is TRL's own teacher, in this process: leave it out, or take DistillationTrainer"
            )

    def _sis_run_settings(self) -> Dict[str, Any]:
        # A target: as the teacher gave it.
        whole = {"log_prob_encoding": "float32", "mass": 0.0}
        return {**super()._sis_run_settings(), "algorithm": "distillation", **whole}

    def train(self, *args: Any, **kwargs: Any) -> Any:
        # Of a training before: rollouts that it did not use up, which are released.
        self._step, self._buffered_inputs = 0, None
        self._sis_sums = {name: _Sums() for name in self._sis_teachers}
        try:
            return super().train(*args, **kwargs)
        finally:
            for of_training in self._sis_rollouts.values():
                for rollouts in of_training.values():
                    rollouts.release()

    # Rollouts.

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        if "pixel_values" in output:
            raise ValueError("a prompt has images, of which teachers are told nothing")
        prompts = _unpadded(output["prompt_ids"], output["prompt_mask"])
        responses = _unpadded(output["completion_ids"], output["completion_mask"])
        asked_for = [example.get("teacher") for example in inputs]
        for row, teacher in enumerate(asked_for):
            if teacher is not None and teacher not in self._sis_teachers:
                raise ValueError(
                    f"row {row} of the dataset has teacher {teacher!r}, which is none of {list(self._sis_teachers)}"
                )
        for name, teacher in self._sis_teachers.items():
            rows = [row for row, own in enumerate(responses) if own and asked_for[row] in (None, name)]
            of_rows = [prompts[row] for row in rows], [responses[row] for row in rows]
            taught = _asked(name, teacher, *of_rows, self._sis_config.top_k)
            rollouts = [Rollout(0, [])] * len(responses)
            for row, scored in zip(rows, taught):
                rollouts[row] = Rollout(len(scored.present), [Block(*block) for block in scored.blocks()])
            # A teacher stays what it is.
            self._sis_rollouts[self.model.training][name].record(rollouts, Sampling("raw"), policy_version=0)
        # Shuffled and split with the rest: where a row stands among the rollouts.
        output["sis_rollout"] = torch.arange(len(responses), device=output["completion_ids"].device)
        return output

    # The update.

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        self._sis_log()
        return loss

    def _compute_loss(self, student: Any, inputs: Any, num_items_in_batch: Any) -> Any:
        """As TRL's: the loss, the sum of the student's entropies, and the number of positions."""
        tokens, inside = inputs["completion_ids"], inputs["completion_mask"].bool()
        batch = sis.torch.PaddedBatch([str(row) for row in range(len(tokens))], inside)
        mask = batch.flat(inside & inputs["tool_mask"].bool() if "tool_mask" in inputs else inside)
        every = torch.cat([inputs["prompt_ids"], tokens], dim=1)
        attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        hidden = batch.flat(self._get_last_hidden_state(student, every, attended, tokens.shape[1]))

        taught: Dict[str, _Taught] = {}
        wanted = [batch.flat(tokens)[:, None]]
        for name in self._sis_teachers:
            found = self._sis_taught(name, batch, inputs, mask)
            if found is not None:
                taught[name] = found
                ids = torch.full((len(batch), found.records.ids.shape[1]), -1, device=tokens.device)
                ids[found.rows] = torch.from_numpy(found.records.ids).to(ids)
                wanted.append(ids)
        head = whole_head(student.get_output_embeddings(), learns=True)
        transform = LogitTransform.of(student.config)
        log_probs, entropies = _log_probs(hidden, head, transform, torch.cat(wanted, dim=1))

        # Where no teacher says anything the gradient is 0, of all parameters.
        total = 0.0 * log_probs[:, 0].clamp(min=-1e4).sum()
        first = 1
        for name, (records, rows) in taught.items():
            last = first + records.ids.shape[1]
            of_loss = mask[rows]
            divergence = _divergence(self.beta, records, Gathered(log_probs[rows, first:last], log_probs[rows, 0]))
            values, teacher_tail, student_tail = (array[of_loss] for array in divergence)
            total = total + self._sis_weights[name] * values.sum()
            sums = self._sis_sums[name]
            there = int((torch.from_numpy(records.present).to(mask.device) & of_loss).sum())
            sums.divergence += values.detach().sum().item()
            sums.teacher_tail += teacher_tail.sum().item()
            sums.student_tail += student_tail.sum().item()
            sums.scored += there
            sums.missing += int(of_loss.sum()) - there
            first = last
        count = mask.sum()
        loss = total / (count.clamp(min=1) if num_items_in_batch is None else num_items_in_batch)
        return loss, entropies[mask].sum(), count

    def _sis_taught(self, name: str, batch: sis.torch.PaddedBatch, inputs: Any, mask: torch.Tensor) -> Optional[_Taught]:
        """None if the server can't be reached, or nothing of the batch was for this teacher."""
        rollouts, indices = self._sis_rollouts[self.model.training][name], inputs["sis_rollout"].tolist()
        lengths = torch.tensor(rollouts.lengths(indices), device=mask.device)
        columns = torch.arange(inputs["completion_ids"].shape[1], device=mask.device)
        rows = batch.flat(columns < lengths[:, None]).nonzero()[:, 0]
        if not len(rows):
            return None
        records = rollouts.records(indices, log_probs=True)
        if records is None:
            self._sis_sums[name].missing += int(mask[rows].sum())
            return None
        return _Taught(records, rows)

    def _sis_log(self) -> None:
        """Once per optimiser step, or batch of an evaluation, of all ranks: into the trainer's own metrics."""
        if self.model.training and not self.accelerator.sync_gradients:
            return
        mine = [value for sums in self._sis_sums.values() for value in dataclasses.astuple(sums)]
        everywhere = self.accelerator.reduce(
            torch.tensor(mine, dtype=torch.float64, device=self.accelerator.device), reduction="sum"
        ).tolist()
        width = len(dataclasses.fields(_Sums))
        metrics = self._metrics["train" if self.model.training else "eval"]
        for number, name in enumerate(self._sis_teachers):
            sums = _Sums(*everywhere[number * width : (number + 1) * width])
            seen = sums.scored + sums.missing
            # TRL leaves out what is NaN.
            each = lambda value: value / sums.scored if sums.scored else math.nan
            metrics[f"sis/{name}/{'kl' if self.beta in (0, 1) else 'jsd'}"].append(each(sums.divergence))
            metrics[f"sis/{name}/teacher_tail"].append(each(sums.teacher_tail))
            metrics[f"sis/{name}/student_tail"].append(each(sums.student_tail))
            metrics[f"sis/{name}/missing"].append(sums.missing / seen if seen else math.nan)
            self._sis_sums[name] = _Sums()


def _check_arguments(arguments: Any, config: SisConfig) -> None:
    """ValueError if these DistillationConfig ask for what recorded log-probs don't give."""
    if arguments.temperature != 1:
        raise ValueError(
            f"temperature is {arguments.temperature}, and TRL's loss would be of both models at it: teachers tell "
            "log-probs of temperature 1. Set it to 1"
        )
    if arguments.use_liger_kernel:
        raise ValueError(
            "use_liger_kernel is on: DistillationTrainer, unlike GRPOTrainer, lets Liger put its fused loss into the "
            "model's forward. Set it to False"
        )
    for name in ("weight", "soft_acceptance", "damped_truncation", "token_table_steps", "sets"):
        if getattr(config, name) != getattr(SisConfig(), name):
            raise ValueError(f"SisConfig.{name} is of importance ratios, of which distillation has none: leave it out")


def _divergence(beta: float, records: TopKRecords, student: Gathered) -> sis.torch.Divergence:
    """beta: of DistillationConfig, which lets it be 0 to 1."""
    if beta in (0, 1):
        return (sis.torch.reverse_kl if beta else sis.torch.forward_kl)(records, student)
    return sis.torch.jensen_shannon(records, student, beta)


def _unpadded(tokens: torch.Tensor, mask: torch.Tensor) -> List[List[int]]:
    return [row[own.bool()].tolist() for row, own in zip(tokens, mask)]


def _asked(name: str, teacher: Teacher, prompts: List[Tokens], responses: List[Tokens], top_k: int) -> List[Scored]:
    """ValueError if it speaks of other tokens."""
    if not responses:
        return []
    scored = teacher(prompts, responses, top_k)
    if len(scored) != len(responses):
        raise ValueError(f"teacher {name!r} returned {len(scored)} responses, was asked of {len(responses)}")
    for row, (one, response) in enumerate(zip(scored, responses)):
        there = np.asarray(one.present)
        if there.shape != (len(response),) or not np.array_equal(one.record.sampled_ids, np.asarray(response)[there]):
            raise ValueError(f"teacher {name!r}, response {row}: what it says is of other tokens")
    return scored


def _log_probs(
    hidden: torch.Tensor, head: Head, transform: LogitTransform, wanted: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Of hidden states [N, H], before the head: log-probs float32 [N, C] of the tokens `wanted` [N, C], -inf
    where those are negative, with gradients; and entropies [N], without. The logits of some rows are there
    at a time, and are made again backwards."""

    def of_rows(part: torch.Tensor, tokens: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        bias = None if head.bias is None else head.bias.to(part.dtype)
        logits = torch.nn.functional.linear(part, head.weight.to(part.dtype), bias)
        every = transform(logits).float().log_softmax(dim=1)
        entropies = torch.special.entr(every.detach().exp()).sum(dim=1)
        return every.gather(1, tokens.clamp(min=0)).masked_fill(tokens < 0, -torch.inf), entropies

    rows = max(1, _CHUNK_ELEMENTS // len(head.weight))
    parts = [
        checkpoint(of_rows, hidden[first : first + rows], wanted[first : first + rows], use_reentrant=False)
        for first in range(0, max(1, len(hidden)), rows)
    ]
    log_probs, entropies = zip(*parts)
    return torch.cat(log_probs), torch.cat(entropies)


class SisDistillationTrainer(SisDistillationMixin, DistillationTrainer):
    """TRL's DistillationTrainer with teachers whose log-probs the service keeps."""
