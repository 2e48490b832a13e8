"""Shared by TRL's trainers: settings, the run, the current policy's log-probs at recorded tokens, metrics."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainingArguments

import sis.torch
from sis import _errors
from sis._client import Client
from sis.integrations._config import SisConfig
from sis.integrations._service import Service, of_the_first
from sis.integrations._token_tables import check_trackers
from sis.integrations.trl import _refusals
from sis.integrations.trl._token_tables import TokenTablesCallback
from sis._logit_transform import LogitTransform
from sis._records import TopKRecords
from sis._run import Run, Sampling, label_of
from sis._server_process import LocalServer, local_server
from sis._versions import warn_unless_tested

# One of TRL's trainers, to type checkers: the class after a mixin is known when it is mixed.
_Trainer: Any = object

# Characters of a run's name that say which training it is; the server takes 256 in all.
_LONGEST_NAME = 200
# Number of positions that the head is checked with.
_CHECKED = 32


def agreed(processes: int, arguments: Any, config: SisConfig) -> Tuple[SisConfig, int, Optional[LocalServer]]:
    """Returns what the main process chooses for all.

    Args:
        processes: Number of processes.
        arguments: TrainingArguments.
        config: The settings.

    Returns:
        The settings, with addresses and run. The run's incarnation: above 0 if the run begins again. And the main
        process's own server, which ends with it; None elsewhere, or if another one is used.
    """
    server = None

    def chosen() -> Tuple[SisConfig, int]:
        nonlocal server
        address = config.address
        if address is None:
            if int(os.environ.get("LOCAL_WORLD_SIZE", processes)) < processes:
                raise ValueError("SisConfig.address is None, but there are several machines: start a server for all")
            server = local_server()
            address = server.address
        name = arguments.run_name or os.path.basename(os.path.abspath(arguments.output_dir or "trl"))
        plain = re.sub("[^A-Za-z0-9._-]", "-", name)[:_LONGEST_NAME]
        run_id = config.run or f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        incarnation = 0
        with Client(address) as client, contextlib.suppress(_errors.NotFound):
            incarnation = client.get_run(run_id).run.incarnation + 1
        return replace(config, address=address, run=run_id), incarnation

    return (*of_the_first(chosen), server)


class Head(NamedTuple):
    """Weight [V, H] and bias [V] of a model's head."""

    weight: torch.Tensor
    bias: Optional[torch.Tensor]


def whole_head(head: Any, learns: bool) -> Head:
    """Returns the whole head. FSDP2 leaves it split where Accelerate finds no final norm to keep it whole with: in all
    models with adapters. ZeRO-3 leaves it split except while a module of its own is called. TRL gathers it too. All
    ranks must call this, ZeRO-3's within the model's forward, which prepares it for gradients.

    Args:
        head: The module.
        learns: Whether gradients pass through its rows.

    Raises:
        ValueError: FSDP2 would have to bring these gradients to all ranks.
    """

    def whole(value: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        if value is None:
            return None
        if hasattr(value, "ds_id"):
            from trl.trainer.utils import maybe_gather_lm_head_ctx

            # A copy, through which gradients pass: the gathered tensor is freed.
            with torch.set_grad_enabled(learns), maybe_gather_lm_head_ctx(value):
                return value.clone()
        if not isinstance(value, DTensor):
            return value
        if learns and value.requires_grad:
            raise ValueError(
                "the head learns, and is split over processes while losses are computed: with filters use "
                "DDP, or adapters, which leave it as it is"
            )
        return value.detach().full_tensor()

    return Head(whole(head.weight), whole(head.bias))


class DecidingMixin(_Trainer):
    """Refuses settings that would be wrong, and opens the run.

    Attributes:
        sis_client: The client of this process.
        sis_run: The run.
    """

    sis_client: Client
    sis_run: Run

    def __init__(self, *args: Any, sis_config: Optional[SisConfig] = None, **kwargs: Any) -> None:
        """Makes the trainer.

        Args:
            args, kwargs: Arguments of TRL's trainer.
            sis_config: Settings; None: SisConfig().

        Raises:
            ValueError: The trainer's settings do not suit SIS.
        """
        warn_unless_tested("rl", "trl")
        self._sis_config = sis_config or SisConfig()
        for value in (*args, *kwargs.values()):
            if isinstance(value, TrainingArguments):
                # Before a model is loaded and an engine started.
                self._sis_check_arguments(value)
        super().__init__(*args, **kwargs)
        self._sis_check_arguments(self.args)
        self._sis_check_trainer()
        # A server that it started ends with it.
        config, incarnation, self._sis_server = agreed(self.accelerator.num_processes, self.args, self._sis_config)
        self._sis_config = config
        self.sis_client = config.client()
        self.sis_run = config.create_run(self.sis_client, incarnation=incarnation, **self._sis_run_settings())
        self._sis_service = Service(config, self.sis_client, self.sis_run)
        if self._sis_config.token_table_steps:
            self.add_callback(TokenTablesCallback(self))
        self._sis_head_checked = False
        # While a loss is computed: the hidden states [..., H] before the head, one tensor per call, and the head.
        self._sis_hidden: List[torch.Tensor] = []
        self._sis_head: Optional[Head] = None
        # The optimiser step at which this training began, and the last one so far.
        self._sis_first_step = 0
        self._sis_last_step = -1

    def _sis_check_arguments(self, arguments: Any) -> None:
        _refusals.check_sharding(arguments)
        check_trackers(self._sis_config.token_table_steps, arguments.report_to or (), "report_to")

    def _sis_check_trainer(self) -> None:
        """Refuses settings that are known once the trainer is made."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        # The trainer's own steps begin at 0 again, and a step that broke off is not logged.
        self._sis_first_step = self._sis_last_step + 1
        self._sis_service.counts.clear()
        return super().train(*args, **kwargs)

    def _sis_step(self) -> int:
        """Returns the number of optimiser steps so far. A second training of the same trainer continues counting,
        so neither draws nor versions go back."""
        return self._sis_first_step + int(self.state.global_step)

    def _sis_filters(self) -> Sampling:
        """Returns the filters of rollouts; before the first ones, the requested filters."""
        raise NotImplementedError

    def _sis_run_settings(self) -> Dict[str, Any]:
        config = self._sis_config
        # A record that is rounded or cut does not show whether it has all that the sampler kept.
        exact = self._sis_filters().truncates
        return {
            "seed": self.args.seed if config.seed is None else config.seed,
            "vocabulary_size": self._sis_model().get_output_embeddings().out_features,
            "mass": 0.0 if exact else config.mass,
            "log_prob_encoding": "float32" if exact else config.log_prob_encoding,
            "model": label_of(str(getattr(self.model.config, "_name_or_path", ""))),
        }

    def _sis_model(self) -> Any:
        """Returns the model without wrappers and adapters around it; adapters in it stay."""
        model = self.accelerator.unwrap_model(self.model)
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _sis_check_server(self, client: Callable[[], Any]) -> None:
        """Checks on all ranks what the server reports to the main one. `client`: TRL's, on the main rank."""
        told = of_the_first(lambda: client().get_server_info())
        _refusals.check_vllm_server(told, self._sis_config.top_k)

    @contextlib.contextmanager
    def _sis_seen(self) -> Iterator[None]:
        """Fills _sis_hidden and _sis_head within the block."""
        model = self._sis_model()

        def see(_module: Any, _arguments: Any, output: Any) -> None:
            self._sis_hidden.append(output.last_hidden_state)
            # All ranks reach this line, whatever their server answers.
            if self._sis_head is None:
                self._sis_head = whole_head(model.get_output_embeddings(), self._sis_learns_by_rows())

        hook = model.base_model.register_forward_hook(see)
        try:
            yield
        finally:
            hook.remove()
            self._sis_hidden, self._sis_head = [], None

    def _sis_learns_by_rows(self) -> bool:
        """Returns whether the loss has gradients through the log-probs of recorded tokens."""
        return self._sis_filters().truncates and not self._sis_config.observe

    def _sis_gathered(
        self,
        records: TopKRecords,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        log_probs: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
    ) -> sis.torch.Gathered:
        """Returns the current policy's log-probs at N recorded positions, with gradients where the loss needs them.
        With a filter the policy is renormalised over the kept tokens.

        Args:
            records: Records of the positions.
            hidden: [N, H], the hidden states before the head.
            tokens: int [N], the sampled tokens.
            log_probs: float32 [N], their log-probs by TRL, in nats.
            mask: bool [N] on the CPU, the positions that count; None: all.
        """
        head, transform = self._sis_head, LogitTransform.of(self._sis_model().config)
        assert head is not None
        some = torch.arange(len(tokens)) if mask is None else mask.nonzero()[:, 0]
        some = some[:_CHECKED].to(hidden.device)
        if len(some) and not self._sis_head_checked:
            _refusals.check_head(
                hidden[some].detach(), head, tokens[some], log_probs[some].detach(),
                transform, self.temperature, self._sis_head_type(hidden),
            )  # fmt: skip
            self._sis_head_checked = True
        with torch.set_grad_enabled(self._sis_learns_by_rows()):
            gathered = sis.torch.gather_from_head_rows(
                records, hidden, head.weight, tokens, log_probs,
                bias=head.bias, transform=transform, temperature=self.temperature,
            )  # fmt: skip
        if not self._sis_filters().truncates:
            return gathered
        replay = sis.torch.replayed(records, gathered)
        self._sis_service.counts.add_replayed(records, replay.complete, mask)
        return replay.current

    def _sis_head_type(self, hidden: torch.Tensor) -> torch.dtype:
        """Returns the type in which TRL's head multiplies hidden states and weights."""
        if getattr(self.args, "cast_lm_head_to_fp32", False):
            return torch.float32
        device = hidden.device.type
        with self.accelerator.autocast():
            return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype

    def _sis_log(self) -> None:
        """Adds the metrics of all ranks to the trainer's own, once per optimiser step."""
        if not self.accelerator.sync_gradients:
            return
        device = self.accelerator.device if self.accelerator.num_processes > 1 else None
        # TRL does not log NaN.
        for name, value in self._sis_service.counts.metrics(device, self._sis_filters().truncates).items():
            self._metrics["train"][f"sis/{name}"].append(value)
