"""GRPOTrainer with selective importance sampling."""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, Optional, Sequence

import torch
from trl import GRPOTrainer

import sis.torch
from sis import recomputed
from sis.integrations._config import SisConfig
from sis.integrations._decided import Decided
from sis.integrations.trl import _capture, _refusals
from sis.integrations.trl._decisions import DecidingMixin
from sis.integrations.trl._rollouts import Rollout, Rollouts
from sis.integrations.trl._sampled import Sampled, placed, sampled
from sis._run import Sampling
from sis._top_k import TopK


class SisTrainerMixin(DecidingMixin):
    """Selective importance sampling for a subclass of GRPOTrainer: put it first among the bases.

        class Mine(SisTrainerMixin, MyTrainer): ...

    The trainer records the top-K log-probs of its rollouts. In each update the service decides about every token. For
    an accepted token `old_per_token_logps` is the current log-prob, so its ratio is 1; for any other, and where
    nothing is recorded or no server answers, it is the log-prob that the token was sampled with. A rule instead of the
    clip multiplies the advantages. With `SisConfig(observe=True)` the training stays as it is without SIS.

    Attributes:
        sis_client: The `sis.Client` of this process.
        sis_run: The `sis.Run`; `sis_client.list_steps(sis_run, draws=[step])[step]` has a step's histograms.
        rollout_func: TRL's; `sis_records` and `sis_sampling` of its result are recorded.
    """

    rollout_func: Any
    # How the last rollouts were sampled.
    _sis_sampling: Optional[Sampling] = None

    def __init__(self, *args: Any, sis_config: Optional[SisConfig] = None, **kwargs: Any) -> None:
        """Makes the trainer, and connects to the server.

        Args:
            args, kwargs: Arguments of GRPOTrainer.
            sis_config: Settings; None: SisConfig().

        Raises:
            ValueError: GRPOTrainer's settings do not suit SIS; the message says what to set.
            sis.Error: The server is unreachable.
        """
        super().__init__(*args, sis_config=sis_config, **kwargs)
        self._sis_rollout_func: Any = self.rollout_func
        if self.rollout_func is not None:
            self.rollout_func = self._sis_call_rollout_func
        self._sis_rollouts = Rollouts(self._sis_service, self.accelerator.process_index)
        self._sis_capture = None if self._sis_own_sets else self._sis_make_capture()
        # Whether TRL had no log-probs of the last rollouts.
        self._sis_had_none = False
        # While rollouts for training are generated and scored, until the trainer's own sets are recorded.
        self._sis_scores = False
        # For the last rollouts: 0 where a tool wrote the token; None: tools wrote none.
        self._sis_tool_masks: Optional[List[List[int]]] = None
        # The inputs of the loss that is being computed.
        self._sis_inputs: Optional[Dict[str, Any]] = None

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains as GRPOTrainer does, and releases the records at the end.

        Args:
            args, kwargs: Arguments of GRPOTrainer.train.

        Returns:
            TRL's result.
        """
        if self._sis_config.observe:
            return super().train(*args, **kwargs)
        # Discards what a training before left: unused rollouts, which are released, and the step at which the engine
        # got its weights.
        self._step, self._buffered_inputs = 0, None
        self._last_loaded_step = -1
        try:
            return super().train(*args, **kwargs)
        finally:
            self._sis_rollouts.release()

    def _sis_check_arguments(self, arguments: Any) -> None:
        super()._sis_check_arguments(arguments)
        _refusals.check_arguments(arguments, self._sis_config)
        if not (self._sis_own_sets or self._sis_config.observe):
            _refusals.switch_off_own_correction(arguments)

    @property
    def _sis_own_sets(self) -> bool:
        return self._sis_config.sets == "trainer"

    def _sis_filters(self) -> Sampling:
        if self._sis_own_sets:
            # These sets are of the whole policy, whatever filters rollouts have.
            return Sampling("processed", temperature=self.temperature)
        return self._sis_sampling or _refusals.asked_for(self.args)

    def _sis_run_settings(self) -> Dict[str, Any]:
        return {**super()._sis_run_settings(), "algorithm": self.loss_type}

    def _sis_make_capture(self) -> _capture.Capture:
        if self.use_vllm and self.vllm_mode == "server":
            self._sis_check_server(lambda: self.vllm_generation.vllm_client)
            return _capture.vllm_server(self.vllm_generation, self._sis_config.top_k)
        if self.use_vllm:
            return _capture.vllm(self.vllm_generation, self._sis_config.top_k, self.accelerator.process_index)
        return _capture.transformers(self._sis_model(), self.generation_config, self._sis_config.top_k)

    # Rollouts.

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        if self._sis_capture is None or not self.model.training:
            return super()._generate_single_turn(*args, **kwargs)
        with self._sis_capture() as turn:
            completions, log_probs = super()._generate_single_turn(*args, **kwargs)
        self._sis_note_sampling(turn.sampling)
        return completions, self._sis_sampled(turn.records(completions), log_probs)

    def _sis_sampled(self, records: Sequence[TopK], log_probs: Any) -> List[List[Sampled]]:
        """Returns the log-probs of sampled tokens, which carry their records; with `observe` TRL's own ones."""
        self._sis_had_none = log_probs is None
        version = self._sis_first_step + self._sis_policy_version()
        if log_probs is None or not self._sis_config.observe:
            log_probs = [None] * len(records)
        return [sampled(record, version, values) for record, values in zip(records, log_probs)]

    def _sis_note_sampling(self, sampling: Sampling) -> None:
        if sampling != self._sis_sampling:
            _refusals.check_sampling(sampling, 0 if self._sis_config.observe else self.beta)
            _refusals.check_whole_sets(sampling, self.sis_run.config.mass)
            self._sis_sampling = sampling

    def _sis_call_rollout_func(self, prompts: Any, trainer: Any) -> Any:
        """Takes the records out of its result: reward functions get all fields that TRL doesn't know."""
        output = dict(self._sis_rollout_func(prompts, trainer))
        records, sampling = output.pop("sis_records", None), output.pop("sis_sampling", None)
        if not self.model.training or records is None:
            return output
        if sampling is None:
            raise ValueError(
                "rollout_func: there are sis_records, but no sis_sampling: the Sampling they were made with"
            )
        self._sis_note_sampling(sampling)
        masks = output.get("env_mask") or [[1] * len(tokens) for tokens in output["completion_ids"]]
        for row, (mask, record) in enumerate(zip(masks, records)):
            if len(record.sampled_ids) != sum(mask):
                raise ValueError(
                    f"rollout_func: sis_records[{row}] has {len(record.sampled_ids)} positions, must have one for each "
                    f"of the {sum(mask)} generated tokens"
                )
        own = output["logprobs"] and [list(itertools.compress(*row)) for row in zip(output["logprobs"], masks)]
        return {**output, "logprobs": list(map(placed, masks, self._sis_sampled(records, own)))}

    def _generate(self, prompts: Any) -> Any:
        result = super()._generate(prompts)
        if not self.model.training:
            return result
        _, completions, self._sis_tool_masks, _, log_probs, *_ = result
        if self._sis_own_sets:
            return result
        masks = self._sis_tool_masks or [[1] * len(tokens) for tokens in completions]
        self._sis_advance_version()
        version = self._sis_first_step + self._sis_policy_version()
        # Where a rollout_func returned no log-probs, nothing has a record, which is refused.
        rollouts = list(map(Rollout, masks, masks if log_probs is None else log_probs))
        self._sis_rollouts.record(rollouts, self._sis_filters(), version)
        # A training that observes goes on with what TRL itself has.
        return (*result[:4], None, *result[5:]) if self._sis_config.observe and self._sis_had_none else result

    def _sis_policy_version(self) -> int:
        """Returns the number of optimiser steps of this training that made the engine's weights. A trainer whose
        engine's weights lag behind overrides it."""
        return int(self.state.global_step)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._sis_scores = self.model.training
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            self._sis_scores = False
        if self.model.training:
            # The index of each row among the rollouts; TRL shuffles and splits it with the rest.
            completions = output["completion_ids"]
            output["sis_rollout"] = torch.arange(len(completions), device=completions.device)
            if self._sis_config.observe:
                return output
            if self._sis_own_sets:
                # TRL's off-policy mask would read the replaced old log-probs.
                output.setdefault("sampling_per_token_logps", output["old_per_token_logps"])
            # Ratios are relative to these.
            name = "old_per_token_logps" if self._sis_own_sets else "sampling_per_token_logps"
            output["sis_sampling"] = output[name]
        return output

    def _sis_advance_version(self) -> None:
        if self._sis_last_step == self._sis_step():
            return
        self._sis_last_step = self._sis_step()
        if self.accelerator.is_main_process:
            self._sis_service.advance_version(self._sis_last_step)

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
            # The calls that follow are of a reference model.
            self._sis_scores = False
            return self._sis_record_own_sets(model, *arguments, **kwargs)
        if self._sis_scores and self.beta == 0 and not self._sis_config.observe:
            # A forward pass over all rollouts, for old log-probs that are replaced.
            return None, None, None
        result = super()._get_per_token_logps_and_entropies(model, *arguments, **kwargs)
        if self._sis_inputs is None:
            return result
        hidden = torch.cat(self._sis_hidden)[:, -logits_to_keep - 1 : -1]
        decided = self._sis_decided(self._sis_inputs, hidden, result[0])
        if self._sis_config.observe:
            return result
        config, advantages = self._sis_config, self._sis_inputs["advantages"]
        if config.rule is not None and advantages.dim() == 1:
            # TRL's loss takes [B, T] too.
            advantages = advantages[:, None]
        self._sis_inputs["old_per_token_logps"] = decided.old_log_probs(config)
        self._sis_inputs["advantages"] = decided.advantages(config, advantages)
        return decided.log_probs, *result[1:]

    def _sis_record_own_sets(
        self, model: Any, input_ids: Any, attention_mask: Any, length: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Returns what TRL computes of `model` before the first update on these rollouts, and records its sets."""
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
            found = iter(sampled(self._sis_own_record(hidden, tokens, log_probs), self._sis_step()))
            for count, mask in zip(inside.sum(dim=1).tolist(), generated.int().tolist()):
                rollouts.append(Rollout(mask[:count], placed(mask[:count], found)))
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
        # A model's transform of logits keeps their order.
        logits = lambda rows: torch.nn.functional.linear(rows.to(dtype), weight, bias)
        gather = lambda records: self._sis_gathered(records, hidden, tokens, log_probs)
        with torch.autocast(hidden.device.type, enabled=False):
            return recomputed.record(hidden, logits, gather, tokens, self.sis_run.config.top_k)

    def _sis_decided(self, inputs: Dict[str, Any], hidden: torch.Tensor, log_probs: torch.Tensor) -> Decided:
        """Returns the decisions about a micro-batch, [B, T]. Its log-probs have gradients, and are renormalised over
        the tokens that the sampler kept, where the record has all of them. hidden: [B, T, H], before the head."""
        mask = inputs["completion_mask"].bool()
        if "tool_mask" in inputs:
            mask = mask & inputs["tool_mask"].bool()
        self._sis_advance_version()
        rollouts = self._sis_rollouts
        indices = inputs["sis_rollout"].tolist()
        slices = rollouts.slices(indices)
        lengths = torch.tensor([part.length for part in slices])
        inside = torch.arange(mask.shape[1]) < lengths[:, None]
        batch = sis.torch.PaddedBatch([part.sequence for part in slices], inside)
        # Positions that the loss masks are recorded too.
        batch.mask = batch.flat(mask).cpu()
        service, tokens, truncated = self._sis_service, inputs["completion_ids"], self._sis_filters().truncates
        staleness = self._sis_step() - rollouts.policy_version
        service.counts.staleness = (service.counts.staleness or 0) + int(batch.mask.sum()) * staleness
        # If all rollouts are truncated, and masked, nothing is recorded.
        records = rollouts.records(indices, log_probs=truncated) if batch.slices else None
        gather = lambda records: self._sis_gathered(
            records, batch.flat(hidden), batch.flat(tokens), batch.flat(log_probs), batch.mask
        )
        # A training that observes has no such ratios.
        sampling = inputs.get("sis_sampling", log_probs)
        advantages = inputs["advantages"].view(len(mask), -1).expand_as(mask)
        return service.decided_by(
            batch, records, gather, self._sis_step(), tokens, log_probs, sampling, advantages, truncated
        )


class SisGRPOTrainer(SisTrainerMixin, GRPOTrainer):
    """TRL's GRPOTrainer with selective importance sampling."""
