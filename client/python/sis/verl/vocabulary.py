"""Over which ranks verl's engine splits the vocabulary: each has some columns of the same logits."""

from __future__ import annotations

from typing import Any, Callable, List, TypeVar

import torch

_Found = TypeVar("_Found")


class Vocabulary:
    """Of this rank. The first of its group talks to the service, for all."""

    def __init__(self, group: Any = None) -> None:
        """group: of torch.distributed; None: each rank has whole logits."""
        self.group = group

    @staticmethod
    def of(strategy: str) -> Vocabulary:
        """Of an engine that is initialised."""
        if strategy != "megatron":
            return Vocabulary()
        from megatron.core import parallel_state

        return Vocabulary(parallel_state.get_tensor_model_parallel_group())

    @property
    def ranks(self) -> int:
        return 1 if self.group is None else torch.distributed.get_world_size(self.group)

    @property
    def first(self) -> bool:
        return self._rank == 0

    @property
    def _rank(self) -> int:
        return 0 if self.group is None else torch.distributed.get_rank(self.group)

    def start(self, logits: torch.Tensor) -> int:
        """The token of their first column."""
        return self._rank * logits.shape[-1]

    def asked(self, call: Callable[[], _Found]) -> _Found:
        """What the first rank's call returns, on all of them, which have to come by together. Where it fails,
        RuntimeError on the others."""
        if self.group is None:
            return call()
        if self.first:
            try:
                found: Any = [call(), None]
            except Exception as error:
                self._broadcast([None, str(error)])
                raise
        else:
            found = [None, None]
        self._broadcast(found)
        answer, failure = found
        if failure is not None:
            raise RuntimeError(f"the first rank of a split vocabulary failed: {failure}")
        return answer

    def _broadcast(self, found: List[Any]) -> None:
        torch.distributed.broadcast_object_list(found, group=self.group, group_src=0)
