"""The decisions about a mini-batch of verl, and the log-probs and advantages that its loss gets by them."""

from __future__ import annotations

import collections
import math
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

import numpy as np
import torch

import sis.torch
from sis.integrations._config import SisConfig
from sis.integrations._decided import Decided
from sis.integrations.verl._generated import Generated, GeneratedTokens, Part, rows_of
from sis._records import TopKRecords

if TYPE_CHECKING:
    from sis.integrations.verl._training import Training

# Names in verl's model outputs, float32 per token: 1 if it was accepted; the acceptance probability; the log-prob
# over the tokens that the sampler kept, +inf where the record does not show them.
_ACCEPTED = "sis_accepted"
_PROBABILITIES = "sis_probabilities"
_TRUNCATED = "sis_truncated"


class MiniBatch(GeneratedTokens):
    """One draw on one rank."""

    def __init__(self, training: Training, generated: List[Generated], records: Optional[TopKRecords]) -> None:
        """`records`: one slice for each Generated; None if they could not be fetched."""
        # Where Megatron splits the vocabulary it may split activations, and aligns them for that.
        super().__init__(generated, training.vocabulary.ranks)
        self._training = training
        self._truncates = training.truncated and not training.config.observe
        self._records = records

    def loss(
        self,
        stock: Callable[..., Any],
        model_output: Any = None,
        data: Any = None,
        dp_group: Any = None,
        student_logits: Optional[torch.Tensor] = None,
        data_format: str = "thd",
    ) -> Any:
        """verl's engine calls this twice per micro-batch: with the logits, and for the loss."""
        observe = self._training.config.observe
        if student_logits is not None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not observe):
                decisions = self._decisions(student_logits[0], data)
            return {} if observe else {name: values[None] for name, values in decisions.items()}
        if self._truncates:
            model_output["log_probs"] = _renormalised(model_output["log_probs"], model_output[_TRUNCATED])
        if not observe:
            data = _substituted(model_output, data, self._training.config, self._training.sampling)
        return stock(model_output=model_output, data=data, dp_group=dp_group)

    def _decisions(self, logits: torch.Tensor, data: Any) -> Dict[str, torch.Tensor]:
        """Returns SIS's model outputs, float32 [n], of the token after each position; _TRUNCATED with gradients.

        Args:
            logits: [n, V], or this rank's columns, divided by the temperature, of all rows of the micro-batch one after
                the other. With sequence parallelism each rank has n of them, padded at the end, and verl gathers the
                results.
            data: The micro-batch.
        """
        outputs = {name: torch.zeros(len(logits), device=logits.device) for name in (_ACCEPTED, _PROBABILITIES)}
        if self._truncates:
            outputs[_TRUNCATED] = torch.full((len(logits),), torch.inf, device=logits.device)
        for parts in self._apart(self.parts(logits, data)):
            self._decide(parts, logits, outputs)
        return outputs

    def _apart(self, parts: List[Part]) -> List[List[Part]]:
        """Groups parts by call: equal samples have one name, and an Evaluate takes no name twice."""
        if self._records is None:
            return [parts] if parts else []
        seen: Dict[str, int] = collections.Counter()
        calls: Dict[int, List[Part]] = collections.defaultdict(list)
        for part in parts:
            name = self._records.slices[part.generated].sequence
            calls[seen[name]].append(part)
            seen[name] += 1
        return list(calls.values())

    def _decide(self, parts: List[Part], logits: torch.Tensor, outputs: Dict[str, torch.Tensor]) -> None:
        """Fills the outputs at these parts."""
        at, service, draw = rows_of(parts, logits), self._training.service, self._training.draw
        evaluation = None
        if self._records is not None:
            records = self._records.cut([part[:3] for part in parts])
            vocabulary = self._training.vocabulary
            gathered = sis.torch.gather(
                records, logits, rows=at, vocabulary_start=vocabulary.start(logits), group=vocabulary.group
            )
            if self._training.truncated:
                replay = sis.torch.replayed(records, gathered)
                gathered = replay.current
                service.counts.add_replayed(records, replay.complete)
                if self._truncates:
                    kept = _over_the_kept(records, replay.complete, logits, at)
                    outputs[_TRUNCATED] = outputs[_TRUNCATED].index_copy(0, at, kept)
            advantages = self._advantages(parts)
            evaluation = vocabulary.asked(lambda: service.evaluate(records, gathered, draw, advantages))
        if self._training.vocabulary.first:
            service.counts.add(evaluation, len(at))
        if evaluation is None:
            # The rest of the mini-batch doesn't wait for the server again.
            self._records = None
            return
        # Service.evaluate asks for both.
        assert evaluation.acceptance_probabilities is not None
        outputs[_ACCEPTED][at] = sis.torch.tensor(evaluation.accepted, logits.device).float()
        outputs[_PROBABILITIES][at] = sis.torch.tensor(evaluation.acceptance_probabilities, logits.device)

    def _advantages(self, parts: List[Part]) -> Optional[np.ndarray]:
        """Returns the advantages of these parts; None if no observed correction needs them."""
        if not self._training.config.observe:
            return None
        of_parts = ((self.generated[part.generated].advantages, part) for part in parts)
        return np.concatenate([values[part.first : part.first + part.length] for values, part in of_parts])

    def metrics(self) -> Dict[str, float]:
        """Returns the metrics of all ranks, no two of which have the same tokens, without means over no token."""
        from verl.utils.device import get_device_id

        metrics = self._training.service.counts.metrics(get_device_id(), self._training.truncated)
        return {"missing": 0.0, **{name: value for name, value in metrics.items() if not math.isnan(value)}}


def _over_the_kept(
    records: TopKRecords, complete: torch.Tensor, logits: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Returns the sampled tokens' log-probs float32 [N] over the recorded tokens, with gradients; +inf where these are
    not all that the sampler kept. The normalisation needs no other logits."""
    ids, sampled = (torch.from_numpy(array).to(logits.device).long() for array in (records.ids, records.sampled_ids))
    of_set = logits[rows[:, None], ids.clamp(min=0)].float().masked_fill(ids < 0, -torch.inf)
    of_sampled = logits[rows, sampled.clamp(min=0)].float()
    current = sis.torch.replayed(records, sis.torch.Gathered(of_set, of_sampled)).current
    return current.sampled_log_probs.masked_fill(~complete, torch.inf)


def _renormalised(log_probs: torch.Tensor, truncated: torch.Tensor) -> torch.Tensor:
    """Returns `truncated`, and `log_probs` where that is +inf. Both are nested."""
    values = torch.where(torch.isinf(truncated.values()), log_probs.values(), truncated.values())
    return torch.nested.nested_tensor_from_jagged(values, log_probs.offsets())


def _substituted(model_output: Any, data: Any, config: SisConfig, sampling: str) -> Any:
    """Returns `data` with old log-probs data[sampling], and the current ones where a token is accepted: there the ratio
    is 1. With a rule all ratios are 1, and the advantages have its coefficients."""
    from verl.workers.utils.padding import no_padding_2_padding

    if "rollout_is_weights" in data and sampling == "rollout_log_probs":
        raise ValueError(
            "algorithm.rollout_correction weights the tokens too, which corrects twice: "
            "set its rollout_is and rollout_rs to null"
        )
    log_prob = no_padding_2_padding(model_output["log_probs"], data).detach()
    accepted = no_padding_2_padding(model_output[_ACCEPTED], data).bool()
    probabilities = no_padding_2_padding(model_output[_PROBABILITIES], data)

    def padded(values: torch.Tensor) -> torch.Tensor:
        return values.to_padded_tensor(0.0, output_size=log_prob.shape) if values.is_nested else values

    decided = Decided(log_prob, padded(data[sampling]), accepted, probabilities)
    changed = data.copy()
    changed["old_log_probs"] = decided.old_log_probs(config)
    if config.rule is not None:
        changed["advantages"] = decided.advantages(config, padded(data["advantages"]))
    return changed
