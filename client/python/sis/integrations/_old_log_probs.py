"""Old log-probs for any loss that reads them, and advantages."""

from __future__ import annotations

from typing import Dict

import torch

import sis.torch
from sis import recomputed
from sis.integrations._config import SisConfig
from sis.integrations._decided import Decided
from sis.integrations._service import Service
from sis._run import Sampling


class OldLogProbs(Service):
    """Decides about the tokens of micro-batches, for one process of a training and one run.

    Where nothing is recorded, or no server answers, `Decided` has the log-probs that the tokens were sampled with,
    accepts nothing, and one RuntimeWarning per outage says so.

    Attributes:
        step: Number of the optimiser's step, which is the draw, and the policy version before it. A training that
            is resumed continues counting.
    """

    def __init__(self, config: SisConfig, vocabulary_size: int, *, algorithm: str = "", model: str = "") -> None:
        """Creates the run.

        Args:
            config: Settings, with address and run.
            vocabulary_size: Number of tokens of the model's head.
            algorithm, model: As in `sis.Client.create_run`.

        Raises:
            ValueError: The settings have no address or no run.
            sis.Error: The server refuses the run or is unreachable.
        """
        for name in ("address", "run"):
            if not getattr(config, name):
                raise ValueError(f"SisConfig.{name} is missing")
        super().__init__(config, config.client())
        self.run = config.create_run(self.client, vocabulary_size, algorithm=algorithm, model=model)
        self.step = 0

    @torch.no_grad()
    def decided(
        self,
        batch: sis.torch.PaddedBatch,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        log_probs: torch.Tensor,
        sampling_log_probs: torch.Tensor,
        advantages: torch.Tensor,
    ) -> Decided:
        """Asks the service about a micro-batch.

        Args:
            batch: Names of the sequences, and their positions in [B, T].
            tokens: int [B, T], the sampled tokens.
            logits: [B, T, V], of the positions that predict `tokens`, divided by the rollouts' temperature.
            log_probs: float32 [B, T], the current policy's log-probs of `tokens`, in nats.
            sampling_log_probs: float32 [B, T], the log-probs that `tokens` were sampled with, in nats.
            advantages: float32 [B, T] or [B, 1], read only with config.observe.

        Returns:
            The decisions, [B, T].
        """
        records = self.fetch(batch.slices, keep=False) if batch.slices else None
        gather = lambda records: sis.torch.gather(
            records, logits.flatten(0, 1), batch.flat(tokens), rows=batch.rows.to(logits.device)
        )
        advantages = advantages.expand_as(tokens)
        return self.decided_by(
            batch, records, gather, self.step, tokens, log_probs.detach(), sampling_log_probs, advantages
        )

    @torch.no_grad()
    def record(
        self, batch: sis.torch.PaddedBatch, tokens: torch.Tensor, logits: torch.Tensor, temperature: float = 1.0
    ) -> torch.Tensor:
        """Records the policy as it is, before the first update on a batch, as the one that sampled the tokens: for
        engines whose own log-probs are not recorded.

        Args:
            batch, tokens, logits: As in `decided`.
            temperature: Temperature of the rollouts.

        Returns:
            float32 [B, T], the log-probs that the tokens count as sampled with, in nats; 0 outside the batch.
        """
        recorded, own = recomputed.sets(batch, tokens, logits, self.run.config.top_k, self.step)
        self.append(recorded, Sampling("processed", temperature=temperature))
        return batch.padded(own.to(logits.device), 0.0)

    def stepped(self) -> Dict[str, float]:
        """Ends a step of the optimiser; what follows belongs to the next one.

        Returns:
            Metrics of this process and step by name: those of docs/trl.md.
        """
        metrics = self.counts.metrics()
        self.step += 1
        self.advance_version(self.step)
        return metrics
