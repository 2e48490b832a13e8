"""GRPOTrainer with selective importance sampling."""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from trl import GRPOConfig, GRPOTrainer

import sis.torch
from sis.client import Client
from sis.engines.lists import stretches
from sis.evaluation import Totals
from sis.logit_transform import LogitTransform
from sis.options import EvaluateOptions
from sis.run import Run, Sampling, label_of
from sis.sampling_replay import Incomplete
from sis.step_metrics import MissingPositions, missing_shares, step_metrics
from sis.top_k import TopK
from sis.trl import capture, refusals
from sis.trl.config import SisConfig
from sis.trl.connection import agreed
from sis.trl.rollouts import Generated, Rollouts, assembled
from sis.versions import warn_unless_tested

# In the place of an acceptance probability of 0: its logarithm is finite, and the weight no more than it.
_NEVER = 1e-38
# In the place of smaller weights where something is divided by them.
_SMALLEST_WEIGHT = 1e-30
# Positions that the head is checked with.
_CHECKED = 32


class _Acceptance(NamedTuple):
    """bool and float32 [B, T]; false and 0 where nothing is recorded or no server answers."""

    accepted: torch.Tensor
    probabilities: torch.Tensor
    # Of the current policy, with gradients: where the record has all that the sampler kept, of the policy
    # renormalised over that.
    log_probs: torch.Tensor
    # With gradients: of score_center.
    center: torch.Tensor


# GRPOTrainer, to type checkers; what comes after the mixin is known when it is mixed.
_Trainer: Any = object


class SisTrainerMixin(_Trainer):
    """Goes before GRPOTrainer, or a subclass of it, among the bases.

    While it trains: the top-K log-probs of what is generated are recorded, and each update asks, for
    every token, whether the current policy could as well have sampled it. Where it could,
    `old_per_token_logps` are the current log-probs, so the ratio is 1; elsewhere they are those that
    the token was sampled with. So they are where nothing is recorded, or no server answers.
    """

    def __init__(self, *args: Any, sis_config: Optional[SisConfig] = None, **kwargs: Any) -> None:
        """`sis_config`: SisConfig() if left out. All else is GRPOTrainer's. ValueError if its
        settings would make SIS wrong."""
        warn_unless_tested("rl", "trl")
        config = sis_config or SisConfig()
        for value in (*args, *kwargs.values()):
            if isinstance(value, GRPOConfig):
                # An engine need not have started for this.
                refusals.check_arguments(value, config)
        super().__init__(*args, **kwargs)
        refusals.check_arguments(self.args, config)
        refusals.check_trainer(self)
        self._sis_config = config
        self._sis_rollout_func, self.rollout_func = self.rollout_func, self.rollout_func and self._sis_call_rollout_func
        connection = agreed(self.accelerator, self.args, config)
        self._sis_server = connection.server
        client = Client(connection.addresses)
        run = client.create_run(connection.run_id, incarnation=connection.incarnation, **self._sis_run_settings())
        worker = f"rank-{self.accelerator.process_index}"
        self._sis_rollouts = Rollouts(client, run, worker, config.lease_seconds)
        self._sis_generation = 0
        self._sis_capture = self._sis_make_capture()
        # While rollouts for training are generated.
        self._sis_generated: Optional[List[Generated]] = None
        self._sis_sampling: Any = None
        # While rollouts for training are generated and scored.
        self._sis_scores = False
        # While a loss is computed: what it is computed from, and the last hidden states.
        self._sis_inputs: Optional[Dict[str, Any]] = None
        self._sis_hidden: List[torch.Tensor] = []
        self._sis_head_checked = False
        # Of the last optimiser step that the server was told of, and that at which this training began.
        self._sis_version = -1
        self._sis_first_step = 0
        # Of the optimiser step that is being accumulated, on this rank.
        self._sis_totals = Totals()
        self._sis_staleness = 0
        self._sis_incomplete = Incomplete()
        self._sis_missing = MissingPositions()

    @property
    def sis_client(self) -> Client:
        return self._sis_rollouts.client

    @property
    def sis_run(self) -> Run:
        """Of which sis_client.get_step(sis_run, step) tells the totals of an optimiser step."""
        return self._sis_rollouts.run

    def train(self, *args: Any, **kwargs: Any) -> Any:
        # The trainer's own steps begin at 0 again.
        self._sis_first_step = self._sis_version + 1
        # Of a training before: rollouts that it did not use up, which are released, what it counted of
        # a step that broke off, and at which step the engine got its weights.
        self._step, self._buffered_inputs = 0, None
        self._sis_totals, self._sis_staleness = Totals(), 0
        self._sis_incomplete.take()
        self._sis_missing.take()
        self._last_loaded_step = -1
        try:
            return super().train(*args, **kwargs)
        finally:
            self._sis_rollouts.release()

    # To begin with.

    def _sis_run_settings(self) -> Dict[str, Any]:
        seed = self._sis_config.seed
        # Of 12 bits a record doesn't tell whether it has all that the sampler kept.
        exact = self._sis_config.score_centering or refusals.asked_for(self.args).truncates
        return {
            "log_prob_encoding": "float32" if exact else "fixed12",
            "seed": self.args.seed if seed is None else seed,
            "vocabulary_size": self._sis_model().get_output_embeddings().weight.shape[0],
            "top_k": self._sis_config.top_k,
            "mass": self._sis_config.mass,
            "algorithm": self.loss_type,
            "model": label_of(str(getattr(self.model.config, "_name_or_path", ""))),
        }

    def _sis_model(self) -> Any:
        """The model without wrappers and adapters around it; adapters in it stay."""
        model = self.accelerator.unwrap_model(self.model)
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _sis_make_capture(self) -> capture.Capture:
        if self.use_vllm and self.vllm_mode == "server":
            self._sis_check_server()
            return capture.vllm_server(self.vllm_generation, self._sis_config.top_k)
        if self.use_vllm:
            return capture.vllm(self.vllm_generation, self._sis_config.top_k, self.accelerator.process_index)
        return capture.transformers(self._sis_model(), self.generation_config, self._sis_config.top_k)

    def _sis_check_server(self) -> None:
        """On all ranks, of what the main one is told."""
        told: List[Any] = [None]
        if self.accelerator.is_main_process:
            told = [self.vllm_generation.vllm_client.get_server_info()]
        if self.accelerator.num_processes > 1:
            broadcast_object_list(told, from_process=0)
        refusals.check_vllm_server(told[0], self._sis_config.top_k)

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
            self._sis_sampling = sampling

    def _sis_call_rollout_func(self, prompts: Any, trainer: Any) -> Any:
        """Takes the records out of what it returns: reward functions get all that TRL doesn't know."""
        output = dict(self._sis_rollout_func(prompts, trainer))
        records, sampling = output.pop("sis_records", None), output.pop("sis_sampling", None)
        if self._sis_generated is None or records is None:
            return output
        if sampling is None:
            raise ValueError("rollout_func: there are sis_records, but no sis_sampling: the Sampling they were made with")
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
                part = TopK(*(array[taken : taken + last - first] for array in record))
                self._sis_generated.append(Generated((*prompt, *tokens[:first]), part))
                taken += last - first
            own = np.zeros(len(tokens), np.float32)
            own[mask != 0] = record.sampled_log_probs
            log_probs.append(own.tolist())
        return {**output, "logprobs": log_probs}

    def _generate(self, prompts: Any) -> Any:
        if not self.model.training:
            return super()._generate(prompts)
        self._sis_generated = []
        try:
            result = super()._generate(prompts)
            rollouts = assembled(self._sis_generated, *result[:3])
        finally:
            self._sis_generated = None
        # The same names, whichever ranks there are: decisions depend on them.
        first = self.accelerator.process_index * len(rollouts)
        names = [f"{self._sis_generation}/{first + row}" for row in range(len(rollouts))]
        self._sis_generation += 1
        self._sis_advance_version()
        version = self._sis_first_step + self._sis_policy_version()
        self._sis_rollouts.record(names, rollouts, self._sis_sampling, version)
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
        return output

    def _sis_step(self) -> int:
        """How many optimiser steps there were, which another training of the same trainer goes on
        counting: neither draws nor versions go back."""
        return self._sis_first_step + int(self.state.global_step)

    def _sis_advance_version(self) -> None:
        if self._sis_version == self._sis_step():
            return
        self._sis_version = self._sis_step()
        if self.accelerator.is_main_process:
            self._sis_rollouts.advance_version(self._sis_version)

    # The update.

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        if "sis_rollout" not in inputs:
            return super()._compute_loss(model, inputs)
        # A copy: the trainer keeps its own for the next iteration.
        self._sis_inputs = dict(inputs)
        hook = self._sis_model().base_model.register_forward_hook(
            lambda _module, _arguments, output: self._sis_hidden.append(output.last_hidden_state)
        )
        try:
            loss = super()._compute_loss(model, self._sis_inputs)
        finally:
            hook.remove()
            self._sis_inputs, self._sis_hidden = None, []
        self._sis_log()
        return loss

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> Any:
        corrects = self.use_vllm and self.vllm_importance_sampling_correction
        if self._sis_scores and self.beta == 0 and not corrects:
            # A forward pass over all rollouts, for old log-probs in whose place come others.
            return None, None, None
        result = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )
        if self._sis_inputs is None:
            return result
        hidden = torch.cat(self._sis_hidden)[:, -logits_to_keep - 1 : -1]
        acceptance = self._sis_acceptance(self._sis_inputs, hidden, result[0])
        old = self._sis_old_log_probs(self._sis_inputs, acceptance)
        self._sis_inputs["old_per_token_logps"] = old
        log_probs = acceptance.log_probs
        if self._sis_config.score_centering:
            # The loss has the gradient of these times the weight; its value stays.
            weight = (log_probs.detach() - old).exp().clamp(_SMALLEST_WEIGHT, self.epsilon_high)
            log_probs = log_probs - (acceptance.center - acceptance.center.detach()) / weight
        return log_probs, *result[1:]

    @torch.no_grad()
    def _sis_old_log_probs(self, inputs: Dict[str, Any], acceptance: _Acceptance) -> torch.Tensor:
        """[B, T]: what makes exp(log_probs - it) the weight of every token."""
        log_probs, sampled = acceptance.log_probs, inputs["sampling_per_token_logps"]
        if self._sis_config.weight == "sampled":
            old = torch.where(acceptance.accepted, log_probs, sampled)
        else:
            a = acceptance.probabilities
            mean = a + (1 - a) * (log_probs - sampled).exp()
            old = torch.where(a > 0, log_probs - mean.log(), sampled)
        if self._sis_config.soft_acceptance:
            advantages = inputs["advantages"]
            advantages = advantages[:, None] if advantages.dim() == 1 else advantages
            outward = (log_probs - sampled) * advantages > 0
            old = torch.where(outward, old - acceptance.probabilities.clamp(min=_NEVER).log(), old)
        return old

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
        self._sis_staleness += scored * (self._sis_step() - rollouts.policy_version)
        nothing = torch.zeros_like(log_probs)
        acceptance = _Acceptance(torch.zeros_like(mask), nothing, log_probs, nothing)
        truncated, centers = self._sis_sampling.truncates, self._sis_config.score_centering
        records = rollouts.records(indices, log_probs=truncated or centers)
        if records is None:
            self._sis_totals += Totals(missing=scored)
            return acceptance
        head = self._sis_model().get_output_embeddings()
        transform = LogitTransform.of(self._sis_model().config)
        states, tokens = batch.flat(hidden), batch.flat(inputs["completion_ids"])
        own = batch.flat(log_probs)
        some = batch.flat(mask).nonzero()[:_CHECKED, 0]
        if len(some) and not self._sis_head_checked:
            refusals.check_head(
                states[some].detach(), head, tokens[some], own[some].detach(),
                transform, self.temperature, self._sis_head_type(states),
            )  # fmt: skip
            self._sis_head_checked = True
        with torch.set_grad_enabled(truncated or centers):
            gathered = sis.torch.gather_from_head_rows(
                records, states, head.weight, tokens, own,
                bias=head.bias, transform=transform, temperature=self.temperature,
            )  # fmt: skip
        if truncated:
            replay = sis.torch.replayed(records, gathered)
            gathered = replay.current
            acceptance = acceptance._replace(log_probs=batch.padded(gathered.sampled_log_probs, 0.0))
            self._sis_incomplete.add(records, replay.complete, flat_mask)
        evaluation = rollouts.evaluate(
            records,
            draw=self._sis_step(),
            outputs=("accepted", "acceptance_probabilities"),
            options=EvaluateOptions(mask=flat_mask, sampled_ids=tokens),
            gathered=gathered._asdict(),
        )
        if evaluation is None:
            self._sis_totals += Totals(missing=scored)
            return acceptance
        self._sis_totals += evaluation.totals
        self._sis_missing.add(evaluation.missing)
        device = log_probs.device
        probabilities = sis.torch.tensor(evaluation.acceptance_probabilities, device)
        acceptance = acceptance._replace(
            accepted=batch.padded(sis.torch.tensor(evaluation.accepted, device), False),
            probabilities=batch.padded(probabilities, 0.0),
        )
        if centers:
            expected = self._sis_config.weight == "expected"
            weight = sis.torch.selective_weight(records, gathered, self.epsilon_high, expected)
            center = sis.torch.score_center(records, gathered, weight)
            acceptance = acceptance._replace(center=batch.padded(center, 0.0))
        return acceptance

    def _sis_head_type(self, hidden: torch.Tensor) -> torch.dtype:
        """That TRL's head multiplies hidden states and weights in."""
        if self.args.cast_lm_head_to_fp32:
            return torch.float32
        device = hidden.device.type
        with self.accelerator.autocast():
            return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype

    def _sis_log(self) -> None:
        """Once per optimiser step, of all ranks: into the trainer's own metrics."""
        if not self.accelerator.sync_gradients:
            return
        missing = self._sis_missing.take()
        sums = [*vars(self._sis_totals).values(), self._sis_staleness, self._sis_incomplete.take(), *missing]
        self._sis_totals, self._sis_staleness = Totals(), 0
        everywhere = torch.tensor(sums, dtype=torch.float64, device=self.accelerator.device)
        summed = self.accelerator.reduce(everywhere, reduction="sum")
        *values, staleness, incomplete = summed[: -len(missing)].tolist()
        totals = Totals(*values)
        seen = totals.scored + totals.missing
        # TRL leaves out what is NaN.
        metrics = {**step_metrics(totals), "staleness": staleness / seen if seen else math.nan}
        metrics.update(missing_shares(summed[-len(missing) :].tolist(), totals))
        if self._sis_sampling.truncates:
            metrics["incomplete"] = incomplete
        for name, value in metrics.items():
            self._metrics["train"][f"sis/{name}"].append(value)


class SisGRPOTrainer(SisTrainerMixin, GRPOTrainer):
    """TRL's GRPOTrainer with selective importance sampling."""
