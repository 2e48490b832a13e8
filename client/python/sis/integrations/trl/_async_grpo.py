"""AsyncGRPOTrainer with selective importance sampling."""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import torch
from trl.experimental.async_grpo import AsyncGRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, _AsyncRolloutLoop
from trl.trainer.utils import pad

from sis.integrations._config import SisConfig
from sis.integrations._decided import Decided
from sis.integrations._refusals import Needed, check
from sis.integrations._service import of_the_first
from sis.integrations.trl._async_rollouts import SEQUENCE, Recording, SisRolloutLoop, SisRolloutLoopMixin
from sis.integrations.trl._decisions import DecidingMixin
from sis._records import Slice
from sis._run import Sampling

# Updates between the time that TRL takes a sample from its queue, where it drops stale ones, and the update on it: one
# sample is loaded ahead, and one did not fit into the batch before.
_LOADED_AHEAD = 2
_NEEDED: Needed = {
    "deepspeed_plugin": (None, "nobody has compared this trainer's loss under DeepSpeed, but under FSDP2 and DDP"),
}


class _Terms(NamedTuple):
    """The M tokens of a micro-batch that the loss is a sum over, instead of a sis.torch.PaddedBatch.

    Attributes:
        sequences: int64 [M], values of SEQUENCE.
        positions: int64 [M], positions in these sequences.
        tokens: int [M], token ids.
    """

    sequences: np.ndarray
    positions: np.ndarray
    tokens: torch.Tensor

    def names(self) -> List[str]:
        return [str(number) for number in np.unique(self.sequences)]

    @property
    def slices(self) -> List[Slice]:
        """Slices that contain all terms in their order."""
        goes_on = (np.diff(self.sequences) == 0) & (np.diff(self.positions) == 1)
        edges = [0, *(np.flatnonzero(~goes_on) + 1).tolist(), len(self.positions)]
        return [
            Slice(str(self.sequences[first]), int(self.positions[first]), last - first)
            for first, last in itertools.pairwise(edges)
        ]

    @property
    def mask(self) -> torch.Tensor:
        """bool [M]."""
        return torch.ones(len(self.tokens), dtype=torch.bool)

    def flat(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def padded(self, values: torch.Tensor, fill: Any) -> torch.Tensor:
        return values


class _Collator:
    """TRL's collator, which also adds the sequence and position of each term of the loss."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, examples: List[Any]) -> Dict[str, Any]:
        (rows,) = examples
        sequences, positions = [], []
        for row in rows:
            numbers, places = [], []
            for sample in row.samples:
                mask = sample["completion_mask"]
                # No token precedes the first one and predicts it.
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
    """A tensor from which a loss takes a copy before it calls the model; the model's wrapper changes the copy."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def __getitem__(self, selected: torch.Tensor) -> torch.Tensor:
        # A copy.
        self.values = self._values[selected]
        return self.values


class SisAsyncTrainerMixin(DecidingMixin):
    """Selective importance sampling for a subclass of AsyncGRPOTrainer: put it first among the bases.

    The process that generates records the top-K log-probs of all rollouts. In each update the service decides about
    every token. An accepted token has ratio 1; any other, and all tokens without a record or a server, keep the ratio
    to the log-prob that they were sampled with, as without SIS.

    Attributes:
        sis_client: The `sis.Client` of this process.
        sis_run: The `sis.Run`.
    """

    def __init__(self, *args: Any, sis_config: Optional[SisConfig] = None, **kwargs: Any) -> None:
        """Makes the trainer, and connects to the server.

        Args:
            args, kwargs: Arguments of AsyncGRPOTrainer.
            sis_config: Settings; None: SisConfig().

        Raises:
            ValueError: AsyncGRPOTrainer's settings do not suit SIS; the message says what to set.
            sis.Error: The server is unreachable.
        """
        super().__init__(*args, sis_config=sis_config, **kwargs)
        if self.accelerator.is_main_process:
            self._sis_prepare(self.rollout_worker)

    def _sis_check_arguments(self, arguments: Any) -> None:
        super()._sis_check_arguments(arguments)
        check(arguments, _NEEDED)
        gone = "the policies that made asynchronous rollouts are gone when these are trained on"
        check(self._sis_config, {"sets": ("engine", gone)}, "SisConfig.")
        if arguments.temperature <= 0:
            raise ValueError(f"temperature is {arguments.temperature}: greedy decoding draws no tokens")

    def _sis_filters(self) -> Sampling:
        return _filters(self.args)

    def _sis_check_trainer(self) -> None:
        super()._sis_check_trainer()
        of_the_first(lambda: _check_worker(self.rollout_worker))

    def get_train_dataloader(self) -> Any:
        """Makes TRL's loader.

        Returns:
            The loader, whose batches also have the sequence and position of each term of the loss.
        """
        of_the_first(lambda: self.vllm_client.wait_for_server_ready())
        self._sis_check_server(lambda: self.vllm_client)
        loader = super().get_train_dataloader()
        # Accelerate's loader around one of PyTorch, or PyTorch's itself.
        inner = getattr(loader, "base_dataloader", loader)
        inner.collate_fn = _Collator(inner.collate_fn)
        return loader

    def _sis_run_settings(self) -> Dict[str, Any]:
        return {
            **super()._sis_run_settings(),
            "max_staleness": self.args.max_staleness + _LOADED_AHEAD,
            "algorithm": "async-grpo",
        }

    def _sis_prepare(self, worker: Any) -> None:
        """Prepares a worker that has not started its process yet."""
        if worker._loop_cls is _AsyncRolloutLoop:
            worker._loop_cls = SisRolloutLoop
        worker._loop_kwargs["sis_recording"] = Recording(self._sis_config, self.sis_run)

    def _sync_weight(self) -> None:
        super()._sync_weight()
        if self.accelerator.is_main_process:
            self._sis_service.advance_version(self.model_version)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes TRL's loss with the weights that SIS makes, and logs the metrics.

        Args:
            model: The model.
            inputs: A micro-batch.
            args, kwargs: Further arguments of TRL's.

        Returns:
            The loss.
        """
        self._sis_last_step = self._sis_step()
        selected = inputs["token_index"] >= 0
        places = inputs["token_index"][selected]
        tokens = inputs["shift_labels"][inputs["attention_mask"].bool()][places]
        terms = _Terms(
            inputs["sis_sequences"][selected].cpu().numpy(), inputs["sis_positions"][selected].cpu().numpy(), tokens
        )
        sampling, advantages = inputs["old_log_probs"][selected], inputs["advantages"][selected]
        observe, taken = self._sis_config.observe, _Taken(inputs["advantages"])

        def with_decisions(**arguments: Any) -> Any:
            """Returns the model's outputs, term by term, with log-ratios instead of log-probs: the loss has already
            taken its own old log-probs, and these are known only now."""
            outputs = model(**arguments)
            (hidden,) = self._sis_hidden
            log_probs = outputs.log_probs.flatten()[places]
            decided = self._sis_decided(terms, hidden[0][places], log_probs, sampling, advantages)
            if not observe:
                taken.values.copy_(decided.advantages(self._sis_config, advantages))
                outputs.log_probs = decided.log_probs - decided.old_log_probs(self._sis_config)
                outputs.entropy = outputs.entropy.flatten()[places]
            return outputs

        if not observe:
            every = torch.full_like(inputs["token_index"], -1)
            every[selected] = torch.arange(len(places), device=every.device)
            zeros = torch.zeros_like(inputs["old_log_probs"])
            inputs = {**inputs, "token_index": every, "old_log_probs": zeros, "advantages": taken}
        with self._sis_seen():
            loss = super().compute_loss(with_decisions, inputs, *args, **kwargs)
        self._sis_log()
        return loss

    def _sis_decided(
        self,
        terms: _Terms,
        hidden: torch.Tensor,
        log_probs: torch.Tensor,
        sampling: torch.Tensor,
        advantages: torch.Tensor,
    ) -> Decided:
        """Returns the decisions [M]; the current log-probs have gradients. hidden: [M, H], before the head."""
        service, truncated = self._sis_service, self._sis_filters().truncates
        records = service.fetch(terms.slices, log_probs=truncated)
        gather = lambda records: self._sis_gathered(records, hidden, terms.tokens, log_probs)
        decided = service.decided_by(
            terms, records, gather, self._sis_step(), terms.tokens, log_probs, sampling, advantages, truncated
        )
        if records is not None:
            # TRL trains on each sample once.
            service.release(terms.names())
        return decided


def _filters(arguments: Any) -> Sampling:
    """Returns the filters of this AsyncGRPOConfig."""
    names = ("temperature", "top_p", "top_k", "min_p")
    return Sampling("processed", **{name: getattr(arguments, name) for name in names})


def _check_worker(worker: Any) -> None:
    """Raises ValueError if the rollouts of this worker would not be recorded."""
    if not isinstance(worker, AsyncRolloutWorker):
        raise ValueError(
            f"rollout_worker is a {type(worker).__name__}, which does not report its log-probs: make it a "
            "subclass of AsyncRolloutWorker"
        )
    loop = worker._loop_cls
    if loop is not _AsyncRolloutLoop and not issubclass(loop, SisRolloutLoopMixin):
        raise ValueError(
            f"the rollout worker's loop is {loop.__name__}: give it sis.integrations.trl.SisRolloutLoopMixin as its "
            "first base, which records what it generates"
        )


class SisAsyncGRPOTrainer(SisAsyncTrainerMixin, AsyncGRPOTrainer):
    """TRL's AsyncGRPOTrainer with selective importance sampling."""
