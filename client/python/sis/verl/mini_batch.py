"""The decisions about a mini-batch of verl, and the log-probs and advantages that its loss gets by them."""

from __future__ import annotations

import collections
import math
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

import torch

import sis.torch
from sis.records import TopKRecords
from sis.token_weights import Decided, TokenWeights
from sis.verl.generated import Generated, Part, Stretches, rows_of

if TYPE_CHECKING:
    from sis.verl.training import Training

# In verl's model outputs, per token, as 0 and 1 what was accepted, where weights need it the acceptance
# probability, and the log-prob over what the sampler kept, +inf where the record doesn't tell.
_ACCEPTED = "sis_accepted"
_PROBABILITIES = "sis_probabilities"
_TRUNCATED = "sis_truncated"


class MiniBatch(Stretches):
    """One draw on one rank."""

    def __init__(
        self, training: Training, draw: int, generated: List[Generated], records: Optional[TopKRecords]
    ) -> None:
        """`records`: one slice per stretch; None if they couldn't be fetched."""
        # Where Megatron splits the vocabulary it may split activations, and aligns them for that.
        super().__init__(generated, training.vocabulary.ranks)
        self._training = training
        self._draw = draw
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
        """What verl's engine calls twice per micro-batch: with the logits, and for the loss."""
        if student_logits is not None:
            return {name: values[None] for name, values in self._decisions(student_logits[0], data).items()}
        if self._training.truncated:
            model_output["log_probs"] = _renormalised(model_output["log_probs"], model_output[_TRUNCATED])
        changed = _substituted(model_output, data, self._training.weights, self._training.sampling)
        return stock(model_output=model_output, data=changed, dp_group=dp_group)

    def _decisions(self, logits: torch.Tensor, data: Any) -> Dict[str, torch.Tensor]:
        """The model outputs that are SIS's, float32 [n] of the token after a position, _TRUNCATED
        with gradients; of logits [n, V], or this rank's columns of them, divided by the temperature, of all
        rows of the micro-batch one after the other. With sequence parallelism each rank has n of them, padded at the
        end, and verl gathers what all have found."""
        outputs = {_ACCEPTED: torch.zeros(len(logits), device=logits.device)}
        if len(self._training.weights.outputs) > 1:
            outputs[_PROBABILITIES] = torch.zeros(len(logits), device=logits.device)
        if self._training.truncated:
            outputs[_TRUNCATED] = torch.full((len(logits),), torch.inf, device=logits.device)
        for parts in self._apart(self.parts(logits, data)):
            self._decide(parts, logits, outputs)
        return outputs

    def _apart(self, parts: List[Part]) -> List[List[Part]]:
        """Samples that are alike have one name, and Evaluate takes none twice: so some for each call."""
        if self._records is None:
            return [parts] if parts else []
        seen: Dict[str, int] = collections.Counter()
        calls: Dict[int, List[Part]] = collections.defaultdict(list)
        for part in parts:
            name = self._records.slices[part.index].sequence
            calls[seen[name]].append(part)
            seen[name] += 1
        return list(calls.values())

    def _decide(self, parts: List[Part], logits: torch.Tensor, outputs: Dict[str, torch.Tensor]) -> None:
        """Of these parts, into the outputs."""
        at = rows_of(parts, logits)
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
                kept = _over_the_kept(records, replay.complete, logits, at)
                outputs[_TRUNCATED] = outputs[_TRUNCATED].index_copy(0, at, kept)
                self._training.counts.add_replayed(records, replay.complete)
            evaluation = vocabulary.asked(lambda: self._training.evaluate(self._draw, records, gathered))
        if self._training.vocabulary.first:
            self._training.counts.add(evaluation, len(at))
        if evaluation is None:
            # The rest of the mini-batch doesn't wait for the server again.
            self._records = None
            return
        outputs[_ACCEPTED][at] = sis.torch.tensor(evaluation.accepted, logits.device).float()
        if _PROBABILITIES in outputs:
            outputs[_PROBABILITIES][at] = sis.torch.tensor(evaluation.acceptance_probabilities, logits.device)

    def metrics(self) -> Dict[str, float]:
        """Over all ranks: no two have the same tokens. Means are per scored token, and left out if there is
        none."""

        from verl.utils.device import get_device_id

        def summed(numbers: List[float]) -> List[float]:
            everywhere = torch.tensor(numbers, dtype=torch.float64, device=get_device_id())
            torch.distributed.all_reduce(everywhere)
            return everywhere.tolist()

        metrics = self._training.counts.metrics(summed, self._training.truncated)
        return {"missing": 0.0, **{name: value for name, value in metrics.items() if not math.isnan(value)}}


def _over_the_kept(
    records: TopKRecords, complete: torch.Tensor, logits: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """float32 [N], with gradients: the sampled tokens' log-probs among the recorded ones, which are all that
    the sampler kept; +inf where they are not. Their normalisation needs no other logits."""
    ids, sampled = (torch.from_numpy(array).to(logits.device).long() for array in (records.ids, records.sampled_ids))
    of_set = logits[rows[:, None], ids.clamp(min=0)].float().masked_fill(ids < 0, -torch.inf)
    of_sampled = logits[rows, sampled.clamp(min=0)].float()
    current = sis.torch.replayed(records, sis.torch.Gathered(of_set, of_sampled)).current
    return current.sampled_log_probs.masked_fill(~complete, torch.inf)


def _renormalised(log_probs: torch.Tensor, truncated: torch.Tensor) -> torch.Tensor:
    """Nested, both: the first where the second is +inf."""
    values = torch.where(torch.isinf(truncated.values()), log_probs.values(), truncated.values())
    return torch.nested.nested_tensor_from_jagged(values, log_probs.offsets())


def _substituted(model_output: Any, data: Any, weights: TokenWeights, sampling: str) -> Any:
    """`data` with the log-probs of sampling, data[sampling], as old ones, and those of the present policy where it is
    as if that had sampled the token: there the ratio is 1, and its gradient that of the log-prob. By a rule
    of `weights` that is so everywhere, and advantages have its coefficients."""
    from verl.workers.utils.padding import no_padding_2_padding

    if "rollout_is_weights" in data and sampling == "rollout_log_probs":
        raise ValueError(
            "algorithm.rollout_correction weights the tokens too, which corrects twice: "
            "set its rollout_is and rollout_rs to null"
        )
    log_prob = no_padding_2_padding(model_output["log_probs"], data).detach()
    accepted = no_padding_2_padding(model_output[_ACCEPTED], data).bool()
    probabilities = torch.zeros_like(log_prob)
    if _PROBABILITIES in model_output:
        probabilities = no_padding_2_padding(model_output[_PROBABILITIES], data)

    def padded(values: torch.Tensor) -> torch.Tensor:
        return values.to_padded_tensor(0.0, output_size=log_prob.shape) if values.is_nested else values

    decided = Decided(log_prob, padded(data[sampling]), accepted, probabilities)
    changed = data.copy()
    changed["old_log_probs"] = weights.old_log_probs(decided)
    if weights.rule is not None:
        changed["advantages"] = weights.advantages(decided, padded(data["advantages"]))
    return changed
