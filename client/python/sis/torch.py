"""PyTorch: padded batches, and the current policy's log-probs at the recorded ids, from logits or
from hidden states and head, on the device where they are.

    batch = sis.torch.PaddedBatch(names, completion_mask)                     # [B, T]
    records = client.fetch_top_k(run, batch.slices, log_probs=False)
    gathered = sis.torch.gather(records, batch.flat(logits), batch.flat(completion_ids))
    evaluation = client.evaluate(run, records, draw=step, **gathered._asdict())
    accepted = batch.padded(sis.torch.tensor(evaluation.accepted), False)     # [B, T]
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, Tuple

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from sis._gathered import Gathered as Gathered, Replayed as Replayed
from sis._gathered import is_complete as is_complete, of_all_slots as of_all_slots, replayed as replayed
from sis._logit_transform import LogitTransform as LogitTransform
from sis._records import SequenceLike, SequenceRef, Slice, TopKRecords

# Number of logits processed at a time: 256 MiB of float32.
_CHUNK_ELEMENTS = 1 << 26
# Number of a head's tokens multiplied at a time.
_HEAD_CHUNK = 1 << 14


def tensor(array: np.ndarray, device: Any = None) -> torch.Tensor:
    """Returns an array that the client returned as a tensor.

    Args:
        array: The array.
        device: The device; None: the CPU.

    Returns:
        The tensor; on the CPU, of the same memory.
    """
    writable = array if array.flags.writeable else array.copy()
    made = torch.from_numpy(np.ascontiguousarray(writable))
    return made if device is None else made.to(device)


class PaddedBatch:
    """The positions of sequences in tensors [B, T]. Row b has its positions from column 0, or its `start`, to the last
    column where the mask is true.

    `slices` omits rows without positions, because for the service a slice of length 0 means everything recorded.
    """

    def __init__(
        self, sequences: Sequence[SequenceLike], mask: torch.Tensor, start: Optional[torch.Tensor] = None
    ) -> None:
        """Makes a batch.

        Args:
            sequences: B names, or names with attempts.
            mask: bool or 0 and 1, [B, T]; false where the policy did not generate the token: padding, or what a tool
                wrote.
            start: int [B], the column of each row's position 0; None: column 0.

        Raises:
            ValueError: The mask has a wrong shape.
        """
        if mask.dim() != 2 or mask.shape[0] != len(sequences):
            raise ValueError(f"mask has shape {list(mask.shape)}, must be [{len(sequences)}, any]")
        self._shape = tuple(mask.shape)
        valid = mask.detach().bool()
        columns = torch.arange(1, mask.shape[1] + 1, device=mask.device)
        ends = (valid * columns).amax(dim=1).cpu() if mask.shape[1] else torch.zeros(mask.shape[0], dtype=torch.long)
        first = torch.zeros_like(ends) if start is None else start.detach().cpu()
        lengths = (ends - first).clamp(min=0)
        # One per row with positions, in order, each with its length.
        self.slices: Tuple[Slice, ...] = tuple(
            Slice(reference.id, length=length, attempt=reference.attempt)
            for reference, length in zip(map(SequenceRef.of, sequences), lengths.tolist())
            if length
        )
        column = torch.arange(mask.shape[1])
        inside = (column >= first[:, None]) & (column < ends[:, None])
        # int64 [N], on the CPU: the indices of the positions in the flattened [B, T].
        self.rows: torch.Tensor = inside.flatten().nonzero()[:, 0]
        # bool [N], on the CPU: for EvaluateOptions.mask.
        self.mask: torch.Tensor = self.flat(valid).cpu()

    def __len__(self) -> int:
        """Returns N, the number of positions."""
        return len(self.rows)

    def flat(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the values of the positions, row by row, in the order of `slices`. Gradients pass.

        Args:
            values: [B, T, ...].

        Returns:
            [N, ...].

        Raises:
            ValueError: `values` has a wrong shape.
        """
        if tuple(values.shape[:2]) != self._shape:
            raise ValueError(f"values have shape {list(values.shape)}, must begin with {list(self._shape)}")
        return values.flatten(0, 1).index_select(0, self.rows.to(values.device))

    def padded(self, values: torch.Tensor, fill: Any) -> torch.Tensor:
        """Puts values of the positions into a padded tensor. Gradients pass.

        Args:
            values: [N, ...].
            fill: The value of all other places.

        Returns:
            [B, T, ...].

        Raises:
            ValueError: `values` has a wrong shape.
        """
        if len(values) != len(self):
            raise ValueError(f"values have shape {list(values.shape)}, must begin with {len(self)}")
        rows = self._shape[0] * self._shape[1]
        made = values.new_full((rows, *values.shape[1:]), fill)
        made = made.index_copy(0, self.rows.to(values.device), values)
        return made.unflatten(0, self._shape)


def gather(
    records: TopKRecords,
    logits: torch.Tensor,
    sampled_ids: Optional[torch.Tensor] = None,
    *,
    temperature: float = 1.0,
    vocabulary_start: int = 0,
    group: Any = None,
    rows: Optional[torch.Tensor] = None,
) -> Gathered:
    """Returns the current policy's log-probs at the recorded ids, and of the sampled tokens, without gradients.

    Args:
        records: Result of fetch_top_k.
        logits: [N, V] of any floating type; widened to float32, some rows at a time.
        sampled_ids: int [N], the trainer's own tokens, used where no token is recorded; see sis.gather.
        temperature: The rollouts' temperature.
        vocabulary_start: With a group, the first token of this rank's columns.
        group: A group of torch.distributed, whose ranks hold columns of the same logits. Every rank gets the same
            result.
        rows: int [N], the rows of the logits, then [any, V], that belong to the records.

    Returns:
        Log-probs [S] at records.used_ids, and [N] of the sampled tokens, float32, nats.

    Raises:
        ValueError: A shape is wrong, or a token is not in the vocabulary.
    """
    if rows is None:
        _check_rows("logits", logits, records)
    elif tuple(rows.shape) != (len(records),):
        raise ValueError(f"rows has shape {list(rows.shape)}, must be [{len(records)}]")
    at_a_time = max(1, _CHUNK_ELEMENTS // max(1, logits.shape[1]))

    def parts(first: int, last: int) -> Iterator[Tuple[int, torch.Tensor]]:
        yield vocabulary_start, logits[first:last] if rows is None else logits[rows[first:last]]

    return _gather(records, sampled_ids, parts, at_a_time, logits.device, temperature, group)


def log_probs_at(
    records: TopKRecords, logits: torch.Tensor, sampled_ids: Optional[torch.Tensor] = None, *, temperature: float = 1.0
) -> Gathered:
    """Does the same as gather, with gradients: for losses that need them, as with sampling_replay.

    Args:
        records: Result of fetch_top_k.
        logits: [N, V]. The result is float64 if the logits are.
        sampled_ids: int [N], as in gather.
        temperature: The rollouts' temperature.

    Returns:
        Log-probs [N, K] and [N], nats. Unused slots, missing positions, and sampled tokens that are unknown are -inf.
    """
    _check_rows("logits", logits, records)
    sampled = _sampled_tokens(records, sampled_ids, logits.device)
    tokens = torch.cat([torch.from_numpy(records.ids).to(logits.device).long(), sampled[:, None]], dim=1)
    exact = logits if logits.dtype == torch.float64 else logits.float()
    every = torch.log_softmax(exact / temperature, dim=1)
    found = every.gather(1, tokens.clamp(min=0)).masked_fill(tokens < 0, -torch.inf)
    return Gathered(found[:, :-1], found[:, -1])


def gather_from_head(
    records: TopKRecords,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    sampled_ids: Optional[torch.Tensor] = None,
    *,
    bias: Optional[torch.Tensor] = None,
    transform: Optional[Callable[[torch.Tensor], torch.Tensor]] = None,
    temperature: float = 1.0,
    vocabulary_start: int = 0,
    group: Any = None,
) -> Gathered:
    """Does the same as gather for the logits hidden @ weight.T + bias, without ever holding all [N, V].

    Product and transform are made in their own type, as the model makes them, and summed in float32.

    Args:
        records: Result of fetch_top_k.
        hidden: [N, H], the last hidden states, after the final norm.
        weight: [V, H], the head's. With a group, the rows of the tokens from vocabulary_start on.
        sampled_ids: int [N], as in gather.
        bias: [V].
        transform: What the model makes of each logit, before the temperature, such as a scale or a cap:
            LogitTransform.of(model.config).
        temperature, vocabulary_start, group: As in gather.

    Returns:
        As gather.
    """
    _check_rows("hidden", hidden, records)
    width = min(_HEAD_CHUNK, max(1, len(weight)))
    rows = max(1, _CHUNK_ELEMENTS // width)

    def parts(first: int, last: int) -> Iterator[Tuple[int, torch.Tensor]]:
        here = hidden[first:last]
        for token in range(0, len(weight), width):
            part = slice(token, token + width)
            own_bias = None if bias is None else bias[part]
            logits = torch.nn.functional.linear(here, weight[part], own_bias)
            yield vocabulary_start + token, logits if transform is None else transform(logits)

    return _gather(records, sampled_ids, parts, rows, hidden.device, temperature, group)


def gather_from_head_rows(
    records: TopKRecords,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    sampled_ids: torch.Tensor,
    sampled_log_probs: torch.Tensor,
    *,
    bias: Optional[torch.Tensor] = None,
    transform: Optional[Callable[[torch.Tensor], torch.Tensor]] = None,
    temperature: float = 1.0,
) -> Gathered:
    """Does the same as gather_from_head where the sampled tokens' log-probs are known, as from a fused head.

    Only the head's rows of the recorded tokens are multiplied, K + 1 of V. A rounding error of a fused head of bfloat16
    in the sampled logit is in all values of its position alike, so their ratios and the acceptance probability are as
    without it. If the values then add up to more than 1, all values of the position are lowered alike. Where the
    sampled token's log-prob is -inf, which says nothing about the others, the whole head is multiplied. Gradients pass,
    except for these positions; rows of the head are then multiplied a second time, backwards.

    Args:
        records: Result of fetch_top_k.
        hidden, weight, bias, temperature: As in gather_from_head.
        sampled_ids: int [N], the trainer's own tokens.
        sampled_log_probs: [N], nats, of these tokens.
        transform: As in gather_from_head; made in float32.

    Returns:
        As gather.

    Raises:
        ValueError: A shape is wrong, or a token is not in the head.
    """
    _check_rows("hidden", hidden, records)
    device = hidden.device
    ids = torch.cat([torch.from_numpy(records.ids).to(device).long(), sampled_ids[:, None].to(device)], dim=1)
    if (ids >= len(weight)).any():
        row, column = (ids >= len(weight)).nonzero()[0].tolist()
        raise ValueError(f"token {ids[row, column]}, position {row}: the head is of {len(weight)} tokens")
    own = sampled_log_probs.float()
    found = torch.empty((len(records), records.ids.shape[1]), dtype=torch.float32, device=device)
    rows = max(1, _CHUNK_ELEMENTS // (ids.shape[1] * max(1, hidden.shape[1])))
    excluded = torch.isneginf(own)
    for first in range(0, len(records), rows):
        part = slice(first, first + rows)
        wanted = ids[part].clamp(min=0)
        # [n, K + 1]. The checkpoint avoids keeping [n, K + 1, H] for the backward pass.
        logits = checkpoint(_head_rows, hidden[part], weight, bias, wanted, use_reentrant=False)
        if transform is not None:
            logits = transform(logits)
        values = own[part, None] + (logits[:, :-1] - logits[:, -1:]) / temperature
        is_sampled = wanted[:, :-1] == wanted[:, -1:]
        found[part] = torch.where(is_sampled, own[part, None], values)
        excluded[part] |= torch.isneginf(logits[:, -1])
    if excluded.any():
        of_those = ids[excluded].to(torch.int32).cpu().numpy()
        some = TopKRecords.of_rows([Slice("excluded", length=len(of_those))], of_those[:, :-1], of_those[:, -1])
        whole = gather_from_head(
            some, hidden[excluded], weight, bias=bias, transform=transform, temperature=temperature
        )
        found[excluded] = of_all_slots(some, whole).log_probs
    used = ids[:, :-1] >= 0
    outside = ~((ids[:, :-1] == ids[:, -1:]) & used).any(dim=1)
    mass = ((found.exp() * used).sum(dim=1) + own.exp() * outside).detach()
    # A smaller excess is rounding of float32.
    excess = torch.where(mass > 1 + 2**-7, mass.log(), 0.0)
    return Gathered(found - excess[:, None], own - excess)


def _head_rows(
    hidden: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor], tokens: torch.Tensor
) -> torch.Tensor:
    logits = (weight[tokens].float() * hidden[:, None].float()).sum(dim=2)
    return logits if bias is None else logits + bias[tokens].float()


@torch.no_grad()
def _gather(
    records: TopKRecords,
    sampled_ids: Optional[torch.Tensor],
    parts: Callable[[int, int], Iterable[Tuple[int, torch.Tensor]]],
    rows: int,
    device: torch.device,
    temperature: float,
    group: Any,
) -> Gathered:
    """Gathers from parts of logits. `parts(first, last)` yields the first token of each part, and its logits
    [last - first, tokens]."""
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, must be above 0")
    if group is not None:
        # Shards may have different sizes, but all ranks must reduce the same rows.
        rows = -_largest_of_group(-rows, device, group)
    sampled = _sampled_tokens(records, sampled_ids, device)
    used, offsets = torch.from_numpy(records.used_ids).to(device).long(), records.offsets
    row_of = torch.from_numpy(np.repeat(np.arange(len(records)), records.counts)).to(device)
    # [S] and [N].
    slots, own = (torch.empty(size, dtype=torch.float32, device=device) for size in (len(used), len(records)))
    vocabulary = 0
    for first in range(0, len(records), rows):
        last = min(first + rows, len(records))
        here, those = slice(first, last), slice(int(offsets[first]), int(offsets[last]))
        # The sampled tokens are last, in the same operation; negative where unknown.
        wanted = torch.cat([used[those], sampled[here]])
        row = torch.cat([row_of[those] - first, torch.arange(last - first, device=device)])
        values = torch.zeros(len(wanted), dtype=torch.float32, device=device)
        largest = torch.full((last - first,), -torch.inf, dtype=torch.float32, device=device)
        summed = torch.zeros_like(largest)
        for start, logits in parts(first, last):
            # [n, tokens].
            exact = logits.float()
            if temperature != 1.0:
                exact = exact / temperature
            vocabulary = max(vocabulary, start + exact.shape[1])
            local = wanted - start
            inside = (local >= 0) & (local < exact.shape[1])
            values = torch.where(inside, exact[row, local.clamp(0, exact.shape[1] - 1)], values)
            new = torch.maximum(largest, exact.amax(dim=1))
            # If all tokens so far are excluded, -inf - -inf would give NaN instead of 0.
            base = new.masked_fill(new == -torch.inf, 0.0)
            summed = summed * (largest - base).exp() + (exact - base[:, None]).exp().sum(dim=1)
            largest = new
        if group is not None:
            values, largest, summed = _over_group(values, largest, summed, group)
        values = values - (largest + summed.log())[row]
        slots[those], own[here] = values[: first - last], values[first - last :]
    if group is not None:
        vocabulary = _largest_of_group(vocabulary, device, group)
    for tokens, positions in ((used, row_of), (sampled, torch.arange(len(records)))):
        if (tokens >= vocabulary).any():
            place = int((tokens >= vocabulary).nonzero()[0])
            raise ValueError(
                f"token {int(tokens[place])}, position {int(positions[place])}: the logits are of {vocabulary} tokens"
            )
    return Gathered(slots, own.masked_fill(sampled < 0, torch.nan))


def _sampled_tokens(records: TopKRecords, sampled_ids: Optional[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Returns [N]; negative where the token is unknown."""
    sampled = torch.from_numpy(records.sampled_ids).to(device).long()
    if sampled_ids is not None:
        if tuple(sampled_ids.shape) != (len(records),):
            raise ValueError(f"sampled_ids has shape {list(sampled_ids.shape)}, must be [{len(records)}]")
        sampled = torch.where(sampled < 0, sampled_ids.detach().to(device).long(), sampled)
    return sampled


def _over_group(
    values: torch.Tensor, largest: torch.Tensor, summed: torch.Tensor, group: Any
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from torch import distributed

    everywhere = largest.clone()
    distributed.all_reduce(everywhere, distributed.ReduceOp.MAX, group=group)
    base = everywhere.masked_fill(everywhere == -torch.inf, 0.0)
    summed = summed * (largest - base).exp()
    distributed.all_reduce(summed, group=group)
    # Each token is on one rank, and 0 on all others, so the sum is exact.
    distributed.all_reduce(values, group=group)
    return values, everywhere, summed


def _largest_of_group(number: int, device: torch.device, group: Any) -> int:
    from torch import distributed

    made = torch.tensor(number, device=device)
    distributed.all_reduce(made, distributed.ReduceOp.MAX, group=group)
    return int(made)


def _check_rows(name: str, values: torch.Tensor, records: TopKRecords) -> None:
    if values.dim() != 2 or len(values) != len(records):
        raise ValueError(f"{name} has shape {list(values.shape)}, must be [{len(records)}, any]")
