"""The calls of one process of a training for its run."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Optional, Sequence, TypeVar

import torch

import sis.torch
from sis._client import Client, append_many
from sis._entries import AppendEntry
from sis._evaluation import Evaluation
from sis.integrations._config import SisConfig
from sis.integrations._decided import Decided
from sis.integrations._step_counts import StepCounts
from sis._options import EvaluateOptions
from sis._outage import Outage
from sis._records import Slice, TopKRecords
from sis._run import Run, Sampling

_Made = TypeVar("_Made")


def of_the_first(make: Callable[[], _Made], group: Any = None) -> _Made:
    """Returns on all ranks what `make` returns on the first one; all must call this.

    Args:
        make: Called on the first rank.
        group: The ranks, of torch.distributed; None: all that there are.

    Raises:
        RuntimeError: `make` raised on the first rank, where its own exception is raised.
    """
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    told: List[Any] = [None, None]
    failed: Optional[Exception] = None
    if not together or torch.distributed.get_rank(group) == 0:
        try:
            told[0] = make()
        except Exception as error:
            # Not all exceptions can be pickled.
            failed, told[1] = error, f"{type(error).__name__}: {error}"
    if together:
        torch.distributed.broadcast_object_list(told, group=group, group_src=0)
    if failed is not None:
        raise failed
    if told[1] is not None:
        raise RuntimeError(f"the first rank failed: {told[1]}")
    return told[0]


class Service:
    """Calls whose loss costs decisions and not the training: each outage warns once, and its calls return None."""

    def __init__(self, config: SisConfig, client: Client, run: Optional[Run] = None) -> None:
        self.config = config
        self.client = client
        self.run: Any = run
        self.outage = Outage()
        # Since the last step.
        self.counts = StepCounts(config.observed)

    def asked(self, loss: str, call: Callable[[], _Made]) -> Optional[_Made]:
        """Returns what `call` returns; None in an outage, whose warning names `loss`."""
        return self.outage.asked(loss, call)

    def append(
        self, entries: Sequence[AppendEntry], sampling: Optional[Sampling], worker: str = "", **more: Any
    ) -> None:
        """Appends entries and waits until they are stored."""
        if entries:
            assert sampling is not None
            append = lambda: append_many(self.client, self.run, entries, sampling=sampling, worker=worker, **more)
            self.asked("rollouts are not recorded", append)

    def advance_version(self, policy_version: int) -> None:
        """Tells the service that weights of this version exist."""
        advance = lambda: self.client.advance_version(self.run, policy_version)
        self.asked("the policy version is not told", advance)

    def fetch(self, slices: Sequence[Slice], log_probs: bool = False, keep: bool = True) -> Optional[TopKRecords]:
        """Fetches records; with `keep` they stay until they are released, or for config.keep_seconds."""
        keep_seconds = self.config.keep_seconds if keep else 0.0
        fetch = lambda: self.client.fetch_top_k(self.run, slices, log_probs=log_probs, keep_seconds=keep_seconds)
        return self.asked("no records", fetch)

    def evaluate(
        self,
        records: TopKRecords,
        gathered: sis.torch.Gathered,
        draw: int,
        advantages: Any = None,
        **options: Any,
    ) -> Optional[Evaluation]:
        """Asks for decisions about the positions of `records`, and with config.observe for other corrections.

        Args:
            records: What `fetch` returned, or part of it.
            gathered: The current policy's log-probs; gradients are ignored.
            draw: Number of the optimiser's step.
            advantages: float32 [N], which only observed corrections read.
            options: Further fields of EvaluateOptions.
        """
        if self.config.observe:
            options = {**options, "observe": self.config.observed, "advantages": advantages}
        evaluate = lambda: self.client.evaluate(
            self.run, records, draw=draw, outputs=("accepted", "acceptance_probabilities"), options=EvaluateOptions(**options),
            **{name: values.detach() for name, values in gathered._asdict().items()},
        )  # fmt: skip
        return self.asked("no decisions", evaluate)

    def decided_by(
        self,
        batch: Any,
        records: Optional[TopKRecords],
        gather: Callable[[TopKRecords], sis.torch.Gathered],
        draw: int,
        tokens: torch.Tensor,
        log_probs: torch.Tensor,
        sampling: torch.Tensor,
        advantages: torch.Tensor,
        truncated: bool = False,
    ) -> Decided:
        """Asks for decisions about the tokens of a micro-batch, all tensors [B, T], and counts them.

        Args:
            batch: A sis.torch.PaddedBatch, or an object with its `slices`, `mask`, `flat` and `padded`.
            records: Records of its slices; None without a server.
            gather: Returns the current policy's log-probs at the records.
            draw: Number of the optimiser's step.
            tokens: int, the sampled tokens.
            log_probs: float32, the current policy's log-probs of `tokens`, in nats.
            sampling: float32, the log-probs that `tokens` were sampled with, in nats.
            advantages: float32, which only observed corrections read.
            truncated: Whether the current log-probs of the result are those that `gather` finds.

        Returns:
            The decisions.
        """
        zeros = torch.zeros_like(log_probs, dtype=torch.float32)
        decided = Decided(log_probs, sampling, zeros.bool(), zeros)
        evaluation = None
        if records is not None:
            gathered = gather(records)
            if truncated:
                decided = decided._replace(log_probs=batch.padded(gathered.sampled_log_probs, 0.0))
            evaluation = self.evaluate(
                records, gathered, draw, batch.flat(advantages), mask=batch.mask, sampled_ids=batch.flat(tokens)
            )
        self.counts.add(evaluation, int(batch.mask.sum()))
        if evaluation is None:
            return decided
        # evaluate asks for both.
        assert evaluation.acceptance_probabilities is not None
        found = (evaluation.accepted, evaluation.acceptance_probabilities)
        accepted, probabilities = (batch.padded(sis.torch.tensor(values, zeros.device), 0) for values in found)
        return decided._replace(accepted=accepted, probabilities=probabilities)

    def release(self, names: Iterable[str]) -> None:
        """Lets the service drop sequences."""
        released = list(names)
        if released:
            self.asked("rollouts are not released", lambda: self.client.release(self.run, released))
