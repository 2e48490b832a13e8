"""What tokens are drawn from while PyTorch generates, step by step."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np
import torch


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

    def arrays(self) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """int32 and float32 [B, T, K], and the log-probs of the tokens that were drawn, [B, T]."""
        ids, log_probs, sampled = (torch.stack(part, dim=1) for part in (self._ids, self._log_probs, self._sampled))
        return ids.to(torch.int32).cpu().numpy(), log_probs.cpu().numpy(), sampled.cpu().numpy()
