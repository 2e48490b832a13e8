"""Selective importance sampling in TRL's asynchronous trainer, whose rollouts are stale by design.

    from sis.trl.async_grpo import SisAsyncGRPOTrainer

    trainer = SisAsyncGRPOTrainer(model=name, reward_funcs=reward, args=args, train_dataset=dataset, sis_config=SisConfig())
    trainer.train()

docs/trl.md says what it does, costs and refuses.
"""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, _AsyncRolloutLoop
from trl.trainer.utils import pad

import sis.torch
from sis.client import Client
from sis.evaluation import Totals
from sis.logit_transform import LogitTransform
from sis.options import EvaluateOptions
from sis.outage import Outage
from sis.records import Slice, TopKRecords
from sis.run import Run, Sampling, label_of
from sis.sampling_replay import Incomplete
from sis.step_metrics import MissingPositions, missing_shares, step_metrics
from sis.trl import refusals
from sis.trl.async_rollouts import SEQUENCE, Recording, SisRolloutLoop, SisRolloutLoopMixin
from sis.trl.config import SisConfig
from sis.trl.connection import agreed
from sis.versions import warn_unless_tested

# Positions that the head is checked with.
_CHECKED = 32
# TRL drops stale samples as it takes them from its queue, one or two updates before they are trained
# on: one that is loaded ahead, and one that found no room in the batch before.
_LOADED_AHEAD = 2

# AsyncGRPOTrainer, to type checkers; what comes after the mixin is known when it is mixed.
_Trainer: Any = object


class _Terms(NamedTuple):
    """The tokens of a micro-batch that the loss is a sum over: [M] each."""

    # Of SEQUENCE, and positions in them.
    sequences: np.ndarray
    positions: np.ndarray
    tokens: torch.Tensor

    def names(self) -> List[str]:
        return [str(number) for number in np.unique(self.sequences)]

    def slices(self) -> List[Slice]:
        """One after the other they are all terms, in order."""
        goes_on = (np.diff(self.sequences) == 0) & (np.diff(self.positions) == 1)
        edges = [0, *(np.flatnonzero(~goes_on) + 1).tolist(), len(self.positions)]
        return [
            Slice(str(self.sequences[first]), int(self.positions[first]), last - first)
            for first, last in itertools.pairwise(edges)
        ]


class _Collator:
    """TRL's, which also says of each term of the loss which position of which sequence it is."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, examples: List[Any]) -> Dict[str, Any]:
        (rows,) = examples
        sequences, positions = [], []
        for row in rows:
            numbers, places = [], []
            for sample in row.samples:
                mask = sample["completion_mask"]
                # A first token has none before it that would predict it.
                trained = np.flatnonzero(mask[1:]) + 1
                numbers.append(np.full(len(trained), sample["metrics"].pop(SEQUENCE), np.int64))
                places.append(trained - np.argmax(mask))
            sequences.append(torch.from_numpy(np.concatenate(numbers)))
            positions.append(torch.from_numpy(np.concatenate(places)))
        batch = self._collate(examples)
        batch["sis_sequences"] = pad(sequences, padding_value=-1)
        batch["sis_positions"] = pad(positions, padding_value=-1)
        return batch


class SisAsyncTrainerMixin(_Trainer):
    """Goes before AsyncGRPOTrainer, or a subclass of it, among the bases.

    The process that makes rollouts records the top-K log-probs of all of them. Each update asks, for
    every token, whether the current policy could as well have sampled it. Where it could, its ratio
    is 1; elsewhere, where nothing is recorded, or no server answers, it is that to the log-prob that
    the token was sampled with, as without SIS.
    """

    def __init__(self, *args: Any, sis_config: Optional[SisConfig] = None, **kwargs: Any) -> None:
        """`sis_config`: SisConfig() if left out. All else is AsyncGRPOTrainer's. ValueError if its
        settings would make SIS wrong."""
        warn_unless_tested("rl", "trl")
        config = sis_config or SisConfig()
        for value in (*args, *kwargs.values()):
            if isinstance(value, AsyncGRPOConfig):
                # A model need not have been loaded for this.
                _check_arguments(value, config)
        super().__init__(*args, **kwargs)
        _check_arguments(self.args, config)
        refusals.check_trainer(self)
        self._sis_config = config
        connection = agreed(self.accelerator, self.args, config)
        self._sis_server = connection.server
        self.sis_client = Client(connection.addresses)
        self.sis_run: Run = self.sis_client.create_run(
            connection.run_id, incarnation=connection.incarnation, **self._sis_run_settings()
        )
        if self.accelerator.is_main_process:
            self._sis_prepare(self.rollout_worker, connection.addresses)
        self._sis_outage = Outage()
        # Of each call of the model while a loss is computed.
        self._sis_hidden: List[torch.Tensor] = []
        self._sis_head_checked = False
        # The optimiser step at which this training began, and that of the last loss.
        self._sis_first_step = 0
        self._sis_step = -1
        # Of the optimiser step that is being accumulated, on this rank.
        self._sis_totals = Totals()
        self._sis_incomplete = Incomplete()
        self._sis_missing = MissingPositions()

    def train(self, *args: Any, **kwargs: Any) -> Any:
        # The trainer's own steps begin at 0 again.
        self._sis_first_step = self._sis_step + 1
        self._sis_totals = Totals()
        self._sis_incomplete.take()
        self._sis_missing.take()
        return super().train(*args, **kwargs)

    def get_train_dataloader(self) -> Any:
        self._sis_check_server()
        loader = super().get_train_dataloader()
        # Accelerate's, around one of PyTorch, or that itself.
        inner = getattr(loader, "base_dataloader", loader)
        inner.collate_fn = _Collator(inner.collate_fn)
        return loader

    def _sis_check_server(self) -> None:
        """On all ranks, of what the main one is told."""
        told: List[Any] = [None]
        if self.accelerator.is_main_process:
            self.vllm_client.wait_for_server_ready()
            told = [self.vllm_client.get_server_info()]
        if self.accelerator.num_processes > 1:
            broadcast_object_list(told, from_process=0)
        refusals.check_vllm_server(told[0], self._sis_config.top_k)

    def _sis_run_settings(self) -> Dict[str, Any]:
        seed = self._sis_config.seed
        return {
            # Of 12 bits a record doesn't tell whether it has all that the sampler kept.
            "log_prob_encoding": "float32" if _filters(self.args).truncates else "fixed12",
            "seed": self.args.seed if seed is None else seed,
            "vocabulary_size": self._sis_model().get_output_embeddings().weight.shape[0],
            "top_k": self._sis_config.top_k,
            "mass": self._sis_config.mass,
            "max_staleness": self.args.max_staleness + _LOADED_AHEAD,
            # Of what TRL drops, or has not trained on at the end.
            "time_to_live": self._sis_config.lease_seconds,
            "algorithm": "async-grpo",
            "model": label_of(str(getattr(self.model.config, "_name_or_path", ""))),
        }

    def _sis_prepare(self, worker: Any, addresses: List[str]) -> None:
        """Before it has started its process."""
        if not isinstance(worker, AsyncRolloutWorker):
            raise ValueError(
                f"rollout_worker is a {type(worker).__name__}, which does not say what it samples from: make it a "
                "subclass of AsyncRolloutWorker"
            )
        if worker._loop_cls is _AsyncRolloutLoop:
            worker._loop_cls = SisRolloutLoop
        elif not issubclass(worker._loop_cls, SisRolloutLoopMixin):
            raise ValueError(
                f"the rollout worker's loop is {worker._loop_cls.__name__}: give it "
                "sis.trl.async_rollouts.SisRolloutLoopMixin as its first base, which records what it generates"
            )
        worker._loop_kwargs["sis_recording"] = Recording(addresses, self.sis_run)

    def _sis_model(self) -> Any:
        """The model without wrappers and adapters around it; adapters in it stay."""
        model = self.accelerator.unwrap_model(self.model)
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _sync_weight(self) -> None:
        super()._sync_weight()
        if self.accelerator.is_main_process:
            advance = lambda: self.sis_client.advance_version(self.sis_run, self.model_version)
            self._sis_outage.asked("the policy version is not told", advance)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._sis_step = self._sis_first_step + int(self.state.global_step)
        selected = inputs["token_index"] >= 0
        places = inputs["token_index"][selected]
        tokens = inputs["shift_labels"][inputs["attention_mask"].bool()][places]
        terms = _Terms(
            inputs["sis_sequences"][selected].cpu().numpy(), inputs["sis_positions"][selected].cpu().numpy(), tokens
        )
        sampling = inputs["old_log_probs"][selected]

        def with_old_log_probs(**arguments: Any) -> Any:
            """What the model returns, term by term, with the log-ratios in the place of log-probs: old
            ones are known only now, when the loss has taken its own."""
            outputs = model(**arguments)
            (hidden,) = self._sis_hidden
            log_probs = outputs.log_probs.flatten()[places]
            outputs.log_probs = self._sis_log_ratios(terms, hidden[0][places], log_probs, sampling)
            outputs.entropy = outputs.entropy.flatten()[places]
            return outputs

        hook = self._sis_model().base_model.register_forward_hook(
            lambda _module, _arguments, output: self._sis_hidden.append(output.last_hidden_state)
        )
        every = torch.full_like(inputs["token_index"], -1)
        every[selected] = torch.arange(len(places), device=every.device)
        changed = {**inputs, "token_index": every, "old_log_probs": torch.zeros_like(inputs["old_log_probs"])}
        try:
            loss = super().compute_loss(with_old_log_probs, changed, *args, **kwargs)
        finally:
            hook.remove()
            self._sis_hidden = []
        self._sis_log()
        return loss

    def _sis_log_ratios(
        self, terms: _Terms, hidden: torch.Tensor, log_probs: torch.Tensor, sampling: torch.Tensor
    ) -> torch.Tensor:
        """[M], with gradients: of the current policy to what each token counts as sampled with. hidden:
        [M, H], before the head."""
        fetch = lambda: self.sis_client.fetch_top_k(
            self.sis_run,
            terms.slices(),
            arrays=("ids", "log_probs", "sampled_ids"),
            lease_seconds=self._sis_config.lease_seconds,
        )
        records: Optional[TopKRecords] = self._sis_outage.asked("no records", fetch)
        if records is None:
            self._sis_totals += Totals(missing=len(terms.tokens))
            return log_probs - sampling
        model = self._sis_model()
        head, transform, temperature = model.get_output_embeddings(), LogitTransform.of(model.config), self.temperature
        if not self._sis_head_checked:
            some = slice(_CHECKED)
            refusals.check_head(
                hidden[some].detach(), head, terms.tokens[some], log_probs[some].detach(),
                transform, temperature, _product_type(self.accelerator, hidden),
            )  # fmt: skip
            self._sis_head_checked = True
        truncated = _filters(self.args).truncates
        with torch.set_grad_enabled(truncated):
            gathered = sis.torch.gather_from_head_rows(
                records, hidden, head.weight, terms.tokens, log_probs,
                bias=head.bias, transform=transform, temperature=temperature,
            )  # fmt: skip
        if truncated:
            replay = sis.torch.replayed(records, gathered)
            gathered = replay.current
            log_probs = gathered.sampled_log_probs
            self._sis_incomplete.add(records, replay.complete)
        evaluate = lambda: self.sis_client.evaluate(
            self.sis_run,
            records,
            draw=self._sis_step,
            outputs=("accepted", "acceptance_probabilities"),
            options=EvaluateOptions(sampled_ids=terms.tokens),
            **{name: value.detach() for name, value in gathered._asdict().items()},
        )
        evaluation = self._sis_outage.asked("no decisions", evaluate)
        # TRL trains on each sample once.
        release = lambda: self.sis_client.release(self.sis_run, terms.names(), [records.lease_id])
        self._sis_outage.asked("rollouts are not released", release)
        if evaluation is None:
            self._sis_totals += Totals(missing=len(terms.tokens))
            return log_probs - sampling
        self._sis_totals += evaluation.totals
        self._sis_missing.add(evaluation.missing)
        accepted = sis.torch.tensor(evaluation.accepted, log_probs.device)
        acceptance = sis.torch.tensor(evaluation.acceptance_probabilities, log_probs.device)
        old = self._sis_old_log_probs(log_probs.detach(), sampling, accepted, acceptance)
        return log_probs - old

    def _sis_old_log_probs(
        self, log_probs: torch.Tensor, sampling: torch.Tensor, accepted: torch.Tensor, acceptance: torch.Tensor
    ) -> torch.Tensor:
        """[M]: what makes exp(log_probs - it) the weight of every token."""
        if self._sis_config.weight == "sampled":
            return torch.where(accepted, log_probs, sampling)
        mean = acceptance + (1 - acceptance) * (log_probs - sampling).exp()
        return torch.where(acceptance > 0, log_probs - mean.log(), sampling)

    def _sis_log(self) -> None:
        """Once per optimiser step, of all ranks: into the trainer's own metrics."""
        if not self.accelerator.sync_gradients:
            return
        missing = self._sis_missing.take()
        sums = [*vars(self._sis_totals).values(), self._sis_incomplete.take(), *missing]
        self._sis_totals = Totals()
        everywhere = torch.tensor(sums, dtype=torch.float64, device=self.accelerator.device)
        summed = self.accelerator.reduce(everywhere, reduction="sum")
        *values, incomplete = summed[: -len(missing)].tolist()
        totals = Totals(*values)
        metrics = {**step_metrics(totals), **missing_shares(summed[-len(missing) :].tolist(), totals)}
        if _filters(self.args).truncates:
            metrics["incomplete"] = incomplete
        for name, value in metrics.items():
            self._metrics["train"][f"sis/{name}"].append(value)


def _filters(arguments: Any) -> Sampling:
    """Of these AsyncGRPOConfig."""
    names = ("temperature", "top_p", "top_k", "min_p")
    return Sampling("processed", **{name: getattr(arguments, name) for name in names})


def _check_arguments(arguments: Any, config: SisConfig) -> None:
    """ValueError if SIS can't go with these AsyncGRPOConfig, whose loss clips and has no other
    forms."""
    for name in ("soft_acceptance", "score_centering"):
        if getattr(config, name):
            raise ValueError(f"SisConfig.{name} goes with loss_type 'cispo', which AsyncGRPOTrainer does not have: leave it out")
    refusals.check_kernels(arguments)
    if arguments.temperature <= 0:
        raise ValueError(f"temperature is {arguments.temperature}: greedy decoding draws no tokens")


def _product_type(accelerator: Any, hidden: torch.Tensor) -> torch.dtype:
    """That TRL's head multiplies hidden states and weights in."""
    device = hidden.device.type
    with accelerator.autocast():
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


class SisAsyncGRPOTrainer(SisAsyncTrainerMixin, AsyncGRPOTrainer):
    """TRL's AsyncGRPOTrainer with selective importance sampling."""
