"""Records an actor's own most probable tokens while it recomputes old log-probs."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import torch

import sis.torch
from sis import _entries, recomputed
from sis.integrations._names import name_of
from sis.integrations.verl._generated import Generated, GeneratedTokens, rows_of
from sis._top_k import TopK


class OwnSets(GeneratedTokens):
    """The sets of one batch.

    Attributes:
        entries: Entries for `sis.append_many` by name; equal samples have one name.
    """

    def __init__(self, generated: List[Generated], top_k: int, version: int) -> None:
        super().__init__(generated)
        self._top_k = top_k
        self._version = version
        # The sets of the micro-batch, by index of the Generated.
        self._found: Dict[int, TopK] = {}
        self.entries: Dict[str, Sequence[_entries.AppendEntry]] = {}

    def loss(
        self,
        model_output: Any = None,
        data: Any = None,
        dp_group: Any = None,
        student_logits: Optional[torch.Tensor] = None,
        data_format: str = "thd",
    ) -> Any:
        """verl's engine calls this as it calls MiniBatch.loss, where no loss is needed."""
        if student_logits is not None:
            self._found = self._sets(student_logits[0], data)
            return {}
        log_probs = model_output["log_probs"].values().float().cpu().numpy()
        for index, first in self.places(data):
            part = self.generated[index]
            length = len(part.sampled_ids)
            name = name_of(part.context, part.sampled_ids, log_probs[first : first + length])
            block = _entries.Block(name, 0, self._version, *self._found[index])
            self.entries.setdefault(name, (block, _entries.Seal(name, length)))
        return torch.tensor(1.0), {}

    def _sets(self, logits: torch.Tensor, data: Any) -> Dict[int, TopK]:
        parts = self.parts(logits, data)
        if not parts:
            return {}
        at = rows_of(parts, logits)
        tokens = torch.from_numpy(np.concatenate([self.generated[part.generated].sampled_ids for part in parts]))
        gather = lambda records: sis.torch.gather(records, logits, rows=at)
        record = recomputed.record(at, logits.__getitem__, gather, tokens, self._top_k)
        return dict(zip([part.generated for part in parts], record.split([part.length for part in parts])))
