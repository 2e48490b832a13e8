"""The transform of logits between a model's head and its softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch


@dataclass(frozen=True)
class LogitTransform:
    """A transform of each logit: first the scale, then the cap.

    Attributes:
        scale: Factor.
        cap: The result is cap * tanh(logit / cap). None: no cap.
    """

    scale: float = 1.0
    cap: Optional[float] = None

    @staticmethod
    def of(config: Any) -> LogitTransform:
        """Returns the transform of a transformers configuration.

        Reads it like TRL's fused head (trl.trainer.utils.add_fused_lm_head).

        Args:
            config: The model's configuration.

        Returns:
            The transform.
        """
        text = config.get_text_config()
        divisor = getattr(text, "logits_scaling", None)
        scales = [getattr(text, name, None) for name in ("logit_scale", "output_multiplier", "lm_head_multiplier")]
        if divisor is not None:
            scales.append(divisor if text.model_type == "hyperclovax" else 1 / divisor)
        scale = next((scale for scale in scales if scale is not None), 1.0)
        return LogitTransform(scale, getattr(text, "final_logit_softcapping", None))

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        scaled = logits * self.scale
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)
