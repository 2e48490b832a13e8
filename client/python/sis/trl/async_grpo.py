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
from trl.experimental.async_grpo import AsyncGRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, _AsyncRolloutLoop
from trl.trainer.utils import pad

import sis.torch
from sis.options import EvaluateOptions
from sis.outage import Outage
from sis.records import Slice, TopKRecords
from sis.run import Sampling
from sis.token_weights import Decided
from sis.trl import refusals
from sis.trl.async_rollouts import SEQUENCE, Recording, SisRolloutLoop, SisRolloutLoopMixin
from sis.trl.config import SisConfig
from sis.trl.connection import of_the_main_process
from sis.trl.decisions import DecidingMixin

# TRL drops stale samples as it takes them from its queue, one or two updates before they are trained
# on: one that is loaded ahead, and one that found no room in the batch before.
_LOADED_AHEAD = 2


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


class _Taken:
    """What a loss takes out of a tensor before it calls the model, and has changed when that returns."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def __getitem__(self, selected: torch.Tensor) -> torch.Tensor:
        # A copy.
        self.values = self._values[selected]
        return self.values


class SisAsyncTrainerMixin(DecidingMixin):
    """Goes before AsyncGRPOTrainer, or a subclass of it, among the bases.

    The process that makes rollouts records the top-K log-probs of all of them. Each update asks, for
    every token, whether the current policy could as well have sampled it. Where it could, its ratio
    is 1; elsewhere, where nothing is recorded, or no server answers, it is that to the log-prob that
    the token was sampled with, as without SIS.
    """

    def __init__(self, *args: Any, sis_config: Optional[SisConfig] = None, **kwargs: Any) -> None:
        """`sis_config`: SisConfig() if left out. All else is AsyncGRPOTrainer's. ValueError if its
        settings would make SIS wrong."""
        super().__init__(*args, sis_config=sis_config, **kwargs)
        if self.accelerator.is_main_process:
            self._sis_prepare(self.rollout_worker)
        self._sis_outage = Outage()

    def _sis_check_arguments(self, arguments: Any) -> None:
        super()._sis_check_arguments(arguments)
        refusals.check_deepspeed(arguments)
        _check_arguments(arguments, self._sis_config)

    def _sis_filters(self) -> Sampling:
        return _filters(self.args)

    def _sis_check_trainer(self) -> None:
        super()._sis_check_trainer()
        of_the_main_process(self.accelerator, lambda: _check_worker(self.rollout_worker))

    def get_train_dataloader(self) -> Any:
        of_the_main_process(self.accelerator, lambda: self.vllm_client.wait_for_server_ready())
        self._sis_check_server(lambda: self.vllm_client)
        loader = super().get_train_dataloader()
        # Accelerate's, around one of PyTorch, or that itself.
        inner = getattr(loader, "base_dataloader", loader)
        inner.collate_fn = _Collator(inner.collate_fn)
        return loader

    def _sis_run_settings(self) -> Dict[str, Any]:
        return {
            **super()._sis_run_settings(),
            "max_staleness": self.args.max_staleness + _LOADED_AHEAD,
            # Of what TRL drops, or has not trained on at the end.
            "time_to_live": self._sis_config.keep_seconds,
            "algorithm": "async-grpo",
        }

    def _sis_prepare(self, worker: Any) -> None:
        """Before it has started its process."""
        if worker._loop_cls is _AsyncRolloutLoop:
            worker._loop_cls = SisRolloutLoop
        worker._loop_kwargs["sis_recording"] = Recording(self._sis_connection.addresses, self.sis_run)

    def _sync_weight(self) -> None:
        super()._sync_weight()
        if self.accelerator.is_main_process:
            advance = lambda: self.sis_client.advance_version(self.sis_run, self.model_version)
            self._sis_outage.asked("the policy version is not told", advance)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._sis_last_step = self._sis_step()
        selected = inputs["token_index"] >= 0
        places = inputs["token_index"][selected]
        tokens = inputs["shift_labels"][inputs["attention_mask"].bool()][places]
        terms = _Terms(
            inputs["sis_sequences"][selected].cpu().numpy(), inputs["sis_positions"][selected].cpu().numpy(), tokens
        )
        sampling, advantages = inputs["old_log_probs"][selected], _Taken(inputs["advantages"])

        def with_old_log_probs(**arguments: Any) -> Any:
            """What the model returns, term by term, with the log-ratios in the place of log-probs: old
            ones are known only now, when the loss has taken its own."""
            outputs = model(**arguments)
            (hidden,) = self._sis_hidden
            log_probs = outputs.log_probs.flatten()[places]
            outputs.log_probs = self._sis_log_ratios(terms, hidden[0][places], log_probs, sampling, advantages.values)
            outputs.entropy = outputs.entropy.flatten()[places]
            return outputs

        every = torch.full_like(inputs["token_index"], -1)
        every[selected] = torch.arange(len(places), device=every.device)
        zeros = torch.zeros_like(inputs["old_log_probs"])
        changed = {**inputs, "token_index": every, "old_log_probs": zeros, "advantages": advantages}
        with self._sis_seen():
            loss = super().compute_loss(with_old_log_probs, changed, *args, **kwargs)
        self._sis_log()
        return loss

    def _sis_log_ratios(
        self,
        terms: _Terms,
        hidden: torch.Tensor,
        log_probs: torch.Tensor,
        sampling: torch.Tensor,
        advantages: torch.Tensor,
    ) -> torch.Tensor:
        """[M], with gradients: of the current policy to what each token counts as sampled with. hidden:
        [M, H], before the head. advantages: [M], changed in place by a rule that takes the clip's."""
        fetch = lambda: self.sis_client.fetch_top_k(
            self.sis_run,
            terms.slices(),
            keep_seconds=self._sis_config.keep_seconds,
        )
        records: Optional[TopKRecords] = self._sis_outage.asked("no records", fetch)
        evaluation = None
        if records is not None:
            gathered = self._sis_gathered(records, hidden, terms.tokens, log_probs)
            if self._sis_filters().truncates:
                log_probs = gathered.sampled_log_probs
            evaluate = lambda: self.sis_client.evaluate(
                self.sis_run,
                records,
                draw=self._sis_step(),
                outputs=("accepted", "acceptance_probabilities"),
                options=EvaluateOptions(sampled_ids=terms.tokens),
                **{name: value.detach() for name, value in gathered._asdict().items()},
            )
            evaluation = self._sis_outage.asked("no decisions", evaluate)
            # TRL trains on each sample once.
            release = lambda: self.sis_client.release(self.sis_run, terms.names())
            self._sis_outage.asked("rollouts are not released", release)
        self._sis_counts.add(evaluation, len(terms.tokens))
        acceptance = torch.zeros_like(sampling)
        accepted = acceptance.bool()
        if evaluation is not None:
            accepted = sis.torch.tensor(evaluation.accepted, log_probs.device)
            acceptance = sis.torch.tensor(evaluation.acceptance_probabilities, log_probs.device)
        decided = Decided(log_probs.detach(), sampling, accepted, acceptance)
        advantages.copy_(self._sis_weights.advantages(decided, advantages))
        return log_probs - self._sis_old_log_probs(*decided)

    def _sis_old_log_probs(
        self, log_probs: torch.Tensor, sampling: torch.Tensor, accepted: torch.Tensor, acceptance: torch.Tensor
    ) -> torch.Tensor:
        """[M]: what makes exp(log_probs - it) the weight of every token."""
        return self._sis_weights.old_log_probs(Decided(log_probs, sampling, accepted, acceptance))


def _filters(arguments: Any) -> Sampling:
    """Of these AsyncGRPOConfig."""
    names = ("temperature", "top_p", "top_k", "min_p")
    return Sampling("processed", **{name: getattr(arguments, name) for name in names})


def _check_arguments(arguments: Any, config: SisConfig) -> None:
    """ValueError if SIS can't go with these AsyncGRPOConfig."""
    if config.sets != "engine":
        raise ValueError(
            f"SisConfig.sets is {config.sets!r}, but the policies that made asynchronous rollouts are gone when these "
            "are trained on. Set it to 'engine'"
        )
    if arguments.temperature <= 0:
        raise ValueError(f"temperature is {arguments.temperature}: greedy decoding draws no tokens")


def _check_worker(worker: Any) -> None:
    """ValueError if what this rollout worker generates would not be recorded."""
    if not isinstance(worker, AsyncRolloutWorker):
        raise ValueError(
            f"rollout_worker is a {type(worker).__name__}, which does not say what it samples from: make it a "
            "subclass of AsyncRolloutWorker"
        )
    loop = worker._loop_cls
    if loop is not _AsyncRolloutLoop and not issubclass(loop, SisRolloutLoopMixin):
        raise ValueError(
            f"the rollout worker's loop is {loop.__name__}: give it sis.trl.async_rollouts.SisRolloutLoopMixin as its "
            "first base, which records what it generates"
        )


class SisAsyncGRPOTrainer(SisAsyncTrainerMixin, AsyncGRPOTrainer):
    """TRL's AsyncGRPOTrainer with selective importance sampling."""
