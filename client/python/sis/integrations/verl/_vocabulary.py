"""The ranks over which verl's engine splits the vocabulary: each has some columns of the same logits."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch

from sis.integrations._service import of_the_first

_Found = TypeVar("_Found")


class Vocabulary:
    """This rank's group. Its first rank calls the service for all.

    Attributes:
        group: Group of torch.distributed; None: each rank has whole logits.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group

    @staticmethod
    def of(strategy: str) -> Vocabulary:
        """Returns the group of an engine that is initialised."""
        if strategy != "megatron":
            return Vocabulary()
        from megatron.core import parallel_state

        return Vocabulary(parallel_state.get_tensor_model_parallel_group())

    @property
    def ranks(self) -> int:
        """Number of ranks in the group."""
        return 1 if self.group is None else torch.distributed.get_world_size(self.group)

    @property
    def first(self) -> bool:
        """Returns True if this rank is the group's first."""
        return self._rank == 0

    @property
    def _rank(self) -> int:
        return 0 if self.group is None else torch.distributed.get_rank(self.group)

    def start(self, logits: torch.Tensor) -> int:
        """Returns the token id of the logits' first column."""
        return self._rank * logits.shape[-1]

    def asked(self, call: Callable[[], _Found]) -> _Found:
        """Returns the result of the first rank's call on all ranks, which must call this together.

        Raises:
            RuntimeError: The call failed on the first rank.
        """
        return call() if self.group is None else of_the_first(call, self.group)
