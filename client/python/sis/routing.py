"""Routing replay (R3, arXiv:2510.11370): the experts that a mixture chose when a token was generated,
kept as a column, and chosen again by the trainer.

    column = sis.routing.column(model)                            # of the run
    with sis.routing.recorded(model) as chosen:                   # where tokens are generated
        model(ids)
    stream.append_column(name, 0, column.name, sis.routing.to_column(model, chosen.experts[first:last]))

    records = client.fetch_top_k(run, slices, columns=[column.name])
    experts = sis.routing.from_column(model, records, column.name)   # int64 [N, L, k]
    with sis.routing.replayed(model, rows):                       # [tokens of the batch, L, k]
        logits = model(ids).logits

The value of a position is the routing of the token before it: that with which its distribution was
computed. For models of transformers whose routers return logits, weights and experts.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Tuple

import numpy as np
import torch

from sis.records import TopKRecords
from sis.run import Column


def _routers(model: torch.nn.Module) -> List[Any]:
    """In the order of the layers. ValueError if there are none, or they choose differently many."""
    found = [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]
    if not found or any(router.top_k != found[0].top_k for router in found):
        raise ValueError(f"{type(model).__name__} has {len(found)} routers, must have some that choose equally many")
    return found


def _dtype(routers: List[Any]) -> Any:
    return np.dtype("u1" if max(router.num_experts for router in routers) <= 1 << 8 else "<u2")


def column(model: torch.nn.Module, name: str = "experts") -> Column:
    """A run's column for the experts of this model: L * k bytes a position, or twice as many if a
    layer has more than 256 experts."""
    routers = _routers(model)
    return Column(name, len(routers) * routers[0].top_k * _dtype(routers).itemsize)


def to_column(model: torch.nn.Module, experts: torch.Tensor) -> np.ndarray:
    """Values for the column, [T, L * k], of int [T, L, k]."""
    return experts.detach().cpu().flatten(1).numpy().astype(_dtype(_routers(model)))


def from_column(model: torch.nn.Module, records: TopKRecords, name: str = "experts") -> torch.Tensor:
    """int64 [N, L, k]; -1, which `replayed` leaves to the model, where nothing is recorded."""
    routers = _routers(model)
    values = np.ascontiguousarray(records.columns[name]).view(_dtype(routers)).astype(np.int64)
    values[~records.column_presence[name]] = -1
    return torch.from_numpy(values.reshape(len(values), len(routers), routers[0].top_k))


class Chosen:
    """What routers have chosen."""

    def __init__(self, layers: int) -> None:
        self._layers: List[List[torch.Tensor]] = [[] for _ in range(layers)]

    @property
    def experts(self) -> torch.Tensor:
        """int64 [tokens, L, k], on the CPU: of all forward passes, one after the other."""
        return torch.stack([torch.cat(layer) for layer in self._layers], dim=1)


@contextlib.contextmanager
def recorded(model: torch.nn.Module) -> Iterator[Chosen]:
    """Notes what the routers choose meanwhile."""
    routers = _routers(model)
    chosen = Chosen(len(routers))
    with contextlib.ExitStack() as hooks:
        for layer, router in zip(chosen._layers, routers):

            def note(_: Any, __: Any, output: Tuple[torch.Tensor, ...], layer: List[torch.Tensor] = layer) -> None:
                layer.append(output[2].detach().cpu())

            hooks.callback(router.register_forward_hook(note).remove)
        yield chosen


def _weights(router: Any, logits: torch.Tensor, experts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of these experts, as routers of transformers compute them."""
    weights = torch.softmax(logits, dim=-1, dtype=torch.float).gather(1, experts)
    if getattr(router, "norm_topk_prob", True):
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights.to(dtype)


@contextlib.contextmanager
def replayed(model: torch.nn.Module, experts: torch.Tensor) -> Iterator[None]:
    """Forward passes meanwhile use these experts, int [tokens, L, k] for all tokens of a pass, rows of
    a batch one after the other; a token and layer that has -1 is routed by the model. Weights of
    experts are the model's own, with gradients.

    A pass raises ValueError if it has another number of tokens, or if a router weights its experts
    otherwise than softmax does.
    """
    routers = _routers(model)
    if experts.dim() != 3 or tuple(experts.shape[1:]) != (len(routers), routers[0].top_k):
        raise ValueError(f"experts has shape {list(experts.shape)}, must be [any, {len(routers)}, {routers[0].top_k}]")
    with contextlib.ExitStack() as hooks:
        for layer, router in enumerate(routers):

            def replay(
                router: Any, _: Any, output: Tuple[torch.Tensor, ...], wanted: torch.Tensor = experts[:, layer]
            ) -> Tuple[torch.Tensor, ...]:
                logits, weights, own = output
                if wanted.shape != own.shape:
                    raise ValueError(f"experts has {len(wanted)} tokens, the forward pass {len(own)}")
                if not torch.equal(_weights(router, logits, own, weights.dtype), weights):
                    raise ValueError(f"{type(router).__name__} weights its experts otherwise than by softmax")
                wanted = wanted.to(own.device)
                used = torch.where(wanted < 0, own, wanted)
                return logits, _weights(router, logits, used, weights.dtype), used

            hooks.callback(router.register_forward_hook(replay).remove)
        yield
