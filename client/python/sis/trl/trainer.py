"""GRPOTrainer with selective importance sampling."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import torch
from trl import GRPOTrainer

import sis.torch
from sis import recomputed
from sis.engines.lists import stretches
from sis.options import EvaluateOptions
from sis.run import Sampling
from sis.step_counts import StepCounts
from sis.token_weights import Decided
from sis.top_k import TopK
from sis.trl import capture, refusals
from sis.trl.config import SisConfig
from sis.trl.decisions import DecidingMixin
from sis.trl.rollouts import Block, Generated, Rollout, Rollouts, assembled


class _Acceptance(NamedTuple):
    """bool and float32 [B, T]; false and 0 where nothing is recorded or no server answers."""

    accepted: torch.Tensor
    probabilities: torch.Tensor
    # Of the current policy, with gradients: where the record has all that the sampler kept, of the policy
    # renormalised over that.
    log_probs: torch.Tensor

    def decided(self, inputs: Dict[str, Any]) -> Decided:
        return Decided(self.log_probs.detach(), inputs["sis_sampling"], self.accepted, self.probabilities)


class SisTrainerMixin(DecidingMixin):
    """Goes before GRPOTrainer, or a subclass of it, among the bases.

    While it trains: the top-K log-probs of what is generated are recorded, and each update asks, for
    every token, whether the current policy could as well have sampled it. Where it could,
    `old_per_token_logps` are the current log-probs, so the ratio is 1; elsewhere they are those that
    the token was sampled with. So they are where nothing is recorded, or no server answers. A rule in the
    place of the clip multiplies the advantages instead.
    """

    # Of the last rollouts.
    _sis_sampling: Optional[Sampling] = None

    def __init__(self, *args: Any, sis_config: Optional[SisConfig] = None, **kwargs: Any) -> None:
        """`sis_config`: SisConfig() if left out. All else is GRPOTrainer's. ValueError if its
        settings would make SIS wrong."""
        super().__init__(*args, sis_config=sis_config, **kwargs)
        self._sis_rollout_func, self.rollout_func = self.rollout_func, self.rollout_func and self._sis_call_rollout_func
        rank, keep_seconds = self.accelerator.process_index, self._sis_config.keep_seconds
        self._sis_rollouts = Rollouts(self.sis_client, self.sis_run, rank, keep_seconds)
        self._sis_capture = None if self._sis_own_sets else self._sis_make_capture()
        # While rollouts for training are generated.
        self._sis_generated: Optional[List[Generated]] = None
        # While rollouts for training are generated and scored, up to the trainer's own sets.
        self._sis_scores = False
        # Of the last rollouts: 0 where a tool wrote the token; None: nowhere.
        self._sis_tool_masks: Optional[List[List[int]]] = None
        # While a loss is computed: what it is computed from.
        self._sis_inputs: Optional[Dict[str, Any]] = None
        self._sis_counts = StepCounts("staleness")

    def train(self, *args: Any, **kwargs: Any) -> Any:
        # Of a training before: rollouts that it did not use up, which are released, and at which step the
        # engine got its weights.
        self._step, self._buffered_inputs = 0, None
        self._last_loaded_step = -1
        try:
            return super().train(*args, **kwargs)
        finally:
            self._sis_rollouts.release()

    # To begin with.

    def _sis_check_arguments(self, arguments: Any) -> None:
        super()._sis_check_arguments(arguments)
        refusals.check_arguments(arguments, self._sis_config)
        if not self._sis_own_sets:
            refusals.switch_off_own_correction(arguments)

    @property
    def _sis_own_sets(self) -> bool:
        return self._sis_config.sets == "trainer"

    def _sis_filters(self) -> Sampling:
        if self._sis_own_sets:
            # Of the whole policy, whatever rollouts are drawn with.
            return Sampling("processed", temperature=self.temperature)
        return self._sis_sampling or refusals.asked_for(self.args)

    def _sis_run_settings(self) -> Dict[str, Any]:
        return {**super()._sis_run_settings(), "algorithm": self.loss_type}

    def _sis_make_capture(self) -> capture.Capture:
        if self.use_vllm and self.vllm_mode == "server":
            self._sis_check_server(lambda: self.vllm_generation.vllm_client)
            return capture.vllm_server(self.vllm_generation, self._sis_config.top_k)
        if self.use_vllm:
            return capture.vllm(self.vllm_generation, self._sis_config.top_k, self.accelerator.process_index)
        return capture.transformers(self._sis_model(), self.generation_config, self._sis_config.top_k)

    # Rollouts.

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if self._sis_generated is None:
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        with self._sis_capture() as turn:
            completions, _ = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        self._sis_note_sampling(turn.sampling)
        records = turn.records(completions)
        self._sis_generated += [Generated(tuple(prompt), record) for prompt, record in zip(prompt_ids, records)]
        return completions, [record.sampled_log_probs.tolist() for record in records]

    def _sis_note_sampling(self, sampling: Sampling) -> None:
        if sampling != self._sis_sampling:
            refusals.check_sampling(sampling, self.beta)
            refusals.check_whole_sets(sampling, self.sis_run.config.mass)
            self._sis_sampling = sampling

    def _sis_call_rollout_func(self, prompts: Any, trainer: Any) -> Any:
        """Takes the records out of what it returns: reward functions get all that TRL doesn't know."""
        output = dict(self._sis_rollout_func(prompts, trainer))
        records, sampling = output.pop("sis_records", None), output.pop("sis_sampling", None)
        if self._sis_generated is None or records is None:
            return output
        if sampling is None:
            raise ValueError(
                "rollout_func: there are sis_records, but no sis_sampling: the Sampling they were made with"
            )
        self._sis_note_sampling(sampling)
        log_probs = []
        for row, (prompt, tokens, record) in enumerate(zip(output["prompt_ids"], output["completion_ids"], records)):
            mask = np.asarray(output["env_mask"][row] if "env_mask" in output else [1] * len(tokens))
            if len(record.sampled_ids) != mask.sum():
                raise ValueError(
                    f"rollout_func: sis_records[{row}] has {len(record.sampled_ids)} positions, must have one for each "
                    f"of the {mask.sum()} generated tokens"
                )
            taken = 0
            for first, last in stretches(mask):
                part = record.part(slice(taken, taken + last - first))
                self._sis_generated.append(Generated((*prompt, *tokens[:first]), part))
                taken += last - first
            own = np.zeros(len(tokens), np.float32)
            own[mask != 0] = record.sampled_log_probs
            log_probs.append(own.tolist())
        return {**output, "logprobs": log_probs}

    def _generate(self, prompts: Any) -> Any:
        if not self.model.training:
            return super()._generate(prompts)
        if self._sis_own_sets:
            result = super()._generate(prompts)
            self._sis_tool_masks = result[2]
            return result
        self._sis_generated = []
        try:
            result = super()._generate(prompts)
            rollouts = assembled(self._sis_generated, *result[:3])
        finally:
            self._sis_generated = None
        self._sis_advance_version()
        version = self._sis_first_step + self._sis_policy_version()
        self._sis_rollouts.record(rollouts, self._sis_sampling, version)
        return result

    def _sis_policy_version(self) -> int:
        """Of the weights that were generated with: how many optimiser steps of this training made them. A
        trainer whose engine's weights lag behind overrides it."""
        return int(self.state.global_step)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._sis_scores = self.model.training
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            self._sis_scores = False
        if self.model.training:
            # Shuffled and split with the rest: where a row stands among the rollouts.
            completions = output["completion_ids"]
            output["sis_rollout"] = torch.arange(len(completions), device=completions.device)
            if self._sis_own_sets:
                # TRL's off-policy mask would read what takes the place of old log-probs.
                output.setdefault("sampling_per_token_logps", output["old_per_token_logps"])
            # What ratios are to.
            name = "old_per_token_logps" if self._sis_own_sets else "sampling_per_token_logps"
            output["sis_sampling"] = output[name]
        return output

    def _sis_advance_version(self) -> None:
        if self._sis_last_step == self._sis_step():
            return
        self._sis_last_step = self._sis_step()
        if self.accelerator.is_main_process:
            self._sis_rollouts.advance_version(self._sis_last_step)

    # The update.

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        if "sis_rollout" not in inputs:
            return super()._compute_loss(model, inputs)
        # A copy: the trainer keeps its own for the next iteration.
        self._sis_inputs = dict(inputs)
        try:
            with self._sis_seen():
                loss = super()._compute_loss(model, self._sis_inputs)
        finally:
            self._sis_inputs = None
        self._sis_log()
        return loss

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> Any:
        arguments = (input_ids, attention_mask, logits_to_keep, *args)
        if self._sis_scores and self._sis_own_sets:
            # What follows is of a reference model.
            self._sis_scores = False
            return self._sis_record_own_sets(model, *arguments, **kwargs)
        if self._sis_scores and self.beta == 0:
            # A forward pass over all rollouts, for old log-probs in whose place come others.
            return None, None, None
        result = super()._get_per_token_logps_and_entropies(model, *arguments, **kwargs)
        if self._sis_inputs is None:
            return result
        hidden = torch.cat(self._sis_hidden)[:, -logits_to_keep - 1 : -1]
        acceptance = self._sis_acceptance(self._sis_inputs, hidden, result[0])
        self._sis_inputs["old_per_token_logps"] = self._sis_old_log_probs(self._sis_inputs, acceptance)
        self._sis_inputs["advantages"] = self._sis_advantages(self._sis_inputs, acceptance)
        return acceptance.log_probs, *result[1:]

    def _sis_record_own_sets(
        self, model: Any, input_ids: Any, attention_mask: Any, length: int, *args: Any, **kwargs: Any
    ) -> Any:
        """What TRL computes of `model`, before the first update on these rollouts, part by part, whose sets are
        recorded meanwhile."""
        rollouts: List[Rollout] = []

        def seen(**arguments: Any) -> Any:
            outputs = model(**arguments)
            inside = arguments["attention_mask"][:, -length:].bool().cpu()
            generated = inside.clone()
            if self._sis_tool_masks is not None:
                for row, mask in enumerate(self._sis_tool_masks[len(rollouts) : len(rollouts) + len(inside)]):
                    generated[row, : len(mask)] &= torch.tensor(mask).bool()
            hidden, tokens, log_probs = (
                values[:, -length:][generated.to(values.device)]
                for values in (self._sis_hidden.pop()[:, :-1], arguments["input_ids"], outputs.log_probs)
            )
            record = self._sis_own_record(hidden, tokens, log_probs)
            begin = 0
            for row, places in enumerate(generated.numpy()):
                blocks = []
                for first, last in stretches(places):
                    part = slice(begin, begin + last - first)
                    blocks.append(Block(first, record.part(part)))
                    begin = part.stop
                rollouts.append(Rollout(int(inside[row].sum()), blocks))
            return outputs

        with self._sis_seen():
            result = super()._get_per_token_logps_and_entropies(
                seen, input_ids, attention_mask, length, *args, **kwargs
            )
        self._sis_advance_version()
        self._sis_rollouts.record(rollouts, self._sis_filters(), self._sis_step())
        return result

    def _sis_own_record(self, hidden: torch.Tensor, tokens: torch.Tensor, log_probs: torch.Tensor) -> TopK:
        """hidden: [N, H], before the head."""
        head, dtype = self._sis_head, self._sis_head_type(hidden)
        assert head is not None
        weight, bias = (None if part is None else part.to(dtype) for part in head)
        # What a model makes of its logits leaves their order.
        logits = lambda rows: torch.nn.functional.linear(rows.to(dtype), weight, bias)
        gather = lambda records: self._sis_gathered(records, hidden, tokens, log_probs)
        with torch.autocast(hidden.device.type, enabled=False):
            return recomputed.record(hidden, logits, gather, tokens, self.sis_run.config.top_k)

    def _sis_old_log_probs(self, inputs: Dict[str, Any], acceptance: _Acceptance) -> torch.Tensor:
        """[B, T]."""
        return self._sis_weights.old_log_probs(acceptance.decided(inputs))

    def _sis_advantages(self, inputs: Dict[str, Any], acceptance: _Acceptance) -> torch.Tensor:
        """[B], or [B, T], which TRL's loss takes too."""
        advantages = inputs["advantages"]
        if self._sis_weights.rule is not None and advantages.dim() == 1:
            advantages = advantages[:, None]
        return self._sis_weights.advantages(acceptance.decided(inputs), advantages)

    def _sis_acceptance(self, inputs: Dict[str, Any], hidden: torch.Tensor, log_probs: torch.Tensor) -> _Acceptance:
        """hidden: [B, T, H], before the head."""
        mask = inputs["completion_mask"].bool()
        if "tool_mask" in inputs:
            mask = mask & inputs["tool_mask"].bool()
        self._sis_advance_version()
        rollouts = self._sis_rollouts
        indices = inputs["sis_rollout"].tolist()
        lengths = torch.tensor(rollouts.lengths(indices))
        inside = torch.arange(mask.shape[1]) < lengths[:, None]
        batch = sis.torch.PaddedBatch(rollouts.names(indices), inside)
        flat_mask = batch.flat(mask).cpu()
        scored = int(flat_mask.sum())
        self._sis_counts.others["staleness"] += scored * (self._sis_step() - rollouts.policy_version)
        acceptance = _Acceptance(torch.zeros_like(mask), torch.zeros_like(log_probs), log_probs)
        truncated = self._sis_filters().truncates
        # All may be truncated, and masked, so that nothing is recorded of them.
        records = rollouts.records(indices, log_probs=truncated) if batch.slices else None
        evaluation = None
        if records is not None:
            tokens = batch.flat(inputs["completion_ids"])
            gathered = self._sis_gathered(records, batch.flat(hidden), tokens, batch.flat(log_probs), flat_mask)
            if truncated:
                acceptance = acceptance._replace(log_probs=batch.padded(gathered.sampled_log_probs, 0.0))
            evaluation = rollouts.evaluate(
                records,
                draw=self._sis_step(),
                outputs=("accepted", "acceptance_probabilities"),
                options=EvaluateOptions(mask=flat_mask, sampled_ids=tokens),
                gathered=gathered._asdict(),
            )
        self._sis_counts.add(evaluation, scored)
        if evaluation is None:
            return acceptance
        device = log_probs.device
        probabilities = sis.torch.tensor(evaluation.acceptance_probabilities, device)
        return acceptance._replace(
            accepted=batch.padded(sis.torch.tensor(evaluation.accepted, device), False),
            probabilities=batch.padded(probabilities, 0.0),
        )


class SisGRPOTrainer(SisTrainerMixin, GRPOTrainer):
    """TRL's GRPOTrainer with selective importance sampling."""
