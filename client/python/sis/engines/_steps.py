"""The distributions that tokens are drawn from while PyTorch generates, step by step."""

from __future__ import annotations

from typing import List, Sequence

import numpy as np
import torch

from sis.engines._adapter import Columns


class Steps:
    """The most probable tokens of a batch of sequences that are generated step by step. The log-softmax is taken
    in float32, on the device where the scores are."""

    def __init__(self, top_k: int) -> None:
        self._top_k = top_k
        # Per step: [B, K], [B, K] and [B].
        self._ids: List[torch.Tensor] = []
        self._log_probs: List[torch.Tensor] = []
        self._sampled: List[torch.Tensor] = []
        # [B, vocabulary], of the last step.
        self._last = torch.empty(0)

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, scores: torch.Tensor) -> None:
        """[B, vocabulary]: what the tokens of the next step are drawn from."""
        self._last = scores.float().log_softmax(dim=-1)
        best = self._last.topk(min(self._top_k, scores.shape[-1]), dim=-1)
        self._ids.append(best.indices)
        self._log_probs.append(best.values)

    def draw(self, tokens: torch.Tensor) -> None:
        """int [B]: the tokens of the last step."""
        self._sampled.append(self._last.gather(1, tokens[:, None].to(self._last.device))[:, 0])

    def columns(self, sequences: Sequence[np.ndarray]) -> List[Columns]:
        """Returns the columns of each sequence of the batch. sequences: int32 [t], the tokens that were drawn, up to
        the end of each."""
        ids, log_probs, sampled = (
            torch.stack(part, dim=1).cpu().numpy() for part in (self._ids, self._log_probs, self._sampled)
        )
        return [
            Columns(ids[row, :end], log_probs[row, :end], tokens, sampled[row, :end], None)
            for row, (tokens, end) in enumerate(zip(sequences, map(len, sequences)))
        ]
