"""What the modules for frameworks have in common: old log-probs that make accepted tokens count as
the current policy's own, for any loss that reads old log-probs, and advantages."""

from __future__ import annotations

from typing import Dict, Optional, Union

import torch

import sis.torch
from sis import recomputed
from sis.client import Client
from sis.evaluation import Totals
from sis.options import EvaluateOptions
from sis.outage import Outage
from sis.records import TopKRecords
from sis.run import Run, Sampling
from sis.step_metrics import step_metrics
from sis.token_weights import Decided, TokenWeights


class OldLogProbs:
    """Of one process, for one run. Where nothing is recorded, or no server answers, old log-probs
    are those that the tokens were sampled with, and one RuntimeWarning per outage says so."""

    def __init__(
        self,
        client: Client,
        run: Run,
        *,
        weight: str = "sampled",
        soft_acceptance: bool = False,
        damped_truncation: Union[bool, str] = False,
    ) -> None:
        """weight and what follows: sis.token_weights.TokenWeights."""
        self.client = client
        self.run = run
        self.weights = TokenWeights(weight, soft_acceptance, damped_truncation)
        # The number of the optimiser's step, and the policy version before it. One that is resumed
        # goes on counting.
        self.step = 0
        self._totals = Totals()
        self._outage = Outage()

    @torch.no_grad()
    def decided(
        self,
        batch: sis.torch.PaddedBatch,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        log_probs: torch.Tensor,
        sampling_log_probs: torch.Tensor,
    ) -> Decided:
        """[B, T] each.

        tokens int, log_probs, sampling_log_probs [B, T]: the sampled tokens, and what the current
        policy and the sampler make of them. logits [B, T, V]: of those tokens, not of the ones
        after them, divided by the temperature that the records are of.
        """
        nothing = torch.zeros_like(sampling_log_probs)
        decided = Decided(log_probs.detach(), sampling_log_probs, nothing.bool(), nothing)
        if not batch.slices:
            return decided
        fetch = lambda: self.client.fetch_top_k(self.run, batch.slices, log_probs=False)
        records: Optional[TopKRecords] = self._outage.asked("no records", fetch)
        evaluation = None
        if records is not None:
            own, rows = batch.flat(tokens), batch.rows.to(logits.device)
            gathered = sis.torch.gather(records, logits.flatten(0, 1), own, rows=rows)
            options = EvaluateOptions(mask=batch.mask, sampled_ids=own)
            evaluate = lambda: self.client.evaluate(
                self.run, records, draw=self.step, outputs=self.weights.outputs, options=options, **gathered._asdict()
            )
            evaluation = self._outage.asked("no decisions", evaluate)
        if evaluation is None:
            self._totals += Totals(missing=int(batch.mask.sum()))
            return decided
        self._totals += evaluation.totals
        found = {"accepted": evaluation.accepted, "probabilities": evaluation.acceptance_probabilities}
        return decided._replace(
            **{
                name: batch.padded(sis.torch.tensor(values, logits.device), 0)
                for name, values in found.items()
                if values is not None
            }
        )

    @torch.no_grad()
    def record(
        self,
        batch: sis.torch.PaddedBatch,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        temperature: float = 1.0,
    ) -> torch.Tensor:
        """Takes the policy as it is, before the first update on a batch, for the sampler, where the
        engine's own log-probs are not recorded. Arguments are as in `decided`.

        Returns [B, T], nats: what the tokens count as sampled with, and 0 where there is none.
        """
        recorded, own = recomputed.sets(batch, tokens, logits, self.run.config.top_k, self.step)
        sampling = Sampling("processed", temperature=temperature)
        if recorded:
            append = lambda: self.client.append_many(self.run, recorded, sampling=sampling)
            self._outage.asked("rollouts are not recorded", append)
        return batch.padded(own.to(logits.device), 0.0)

    def metrics(self) -> Dict[str, float]:
        """Of what was decided since they were last asked for, in this process (sis.step_metrics)."""
        totals, self._totals = self._totals, Totals()
        return step_metrics(totals)

    def stepped(self) -> Dict[str, float]:
        """To be called after each step of the optimiser: what follows is of the next one. Returns
        the metrics of this step."""
        metrics = self.metrics()
        self.step += 1
        advance = lambda: self.client.advance_version(self.run, self.step)
        self._outage.asked("the policy version is not told", advance)
        return metrics
