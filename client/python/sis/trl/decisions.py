"""What the trainers with importance ratios do alike: they know what is decided of the tokens of a micro-batch,
make weights of it, and log it."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainingArguments

import sis.torch
from sis.client import Client
from sis.logit_transform import LogitTransform
from sis.records import TopKRecords
from sis.run import Run, Sampling, label_of
from sis.step_counts import StepCounts
from sis.token_tables import check_trackers
from sis.token_weights import TokenWeights
from sis.trl import refusals
from sis.trl.config import SisConfig
from sis.trl.connection import agreed, of_the_main_process
from sis.trl.token_tables import TokenTablesCallback
from sis.versions import warn_unless_tested

# One of TRL's trainers, to type checkers; what comes after a mixin is known when it is mixed.
_Trainer: Any = object

# Positions that the head is checked with.
_CHECKED = 32


class Head(NamedTuple):
    # [V, H] and [V].
    weight: torch.Tensor
    bias: Optional[torch.Tensor]


def whole_head(head: Any, learns: bool) -> Head:
    """FSDP2 leaves it split where Accelerate finds no final norm to keep it whole with: in all models with
    adapters. ZeRO-3 leaves it split but while a module of its own is called. TRL gathers it too. All ranks
    have to call this, ZeRO-3's within the model's forward, which readies it for gradients. learns: whether
    gradients go through its rows; ValueError if FSDP2 would have to bring them to all ranks."""

    def whole(value: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        if hasattr(value, "ds_id"):
            from trl.trainer.utils import maybe_gather_lm_head_ctx

            # Of what is gathered nothing stays, so a copy, with the gradients of it.
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
    """Refuses what would be wrong, and knows server and run."""

    sis_client: Client
    sis_run: Run

    def __init__(self, *args: Any, sis_config: Optional[SisConfig] = None, **kwargs: Any) -> None:
        """`sis_config`: SisConfig() if left out. All else is the trainer's. ValueError if its settings
        would make SIS wrong."""
        warn_unless_tested("rl", "trl")
        self._sis_config = sis_config or SisConfig()
        for value in (*args, *kwargs.values()):
            if isinstance(value, TrainingArguments):
                # No model need have been loaded, nor an engine started, for this.
                self._sis_check_arguments(value)
        super().__init__(*args, **kwargs)
        self._sis_check_arguments(self.args)
        self._sis_check_trainer()
        # A server that it started ends with it.
        self._sis_connection = connection = agreed(self.accelerator, self.args, self._sis_config)
        self.sis_client = Client(connection.addresses)
        self._sis_weights = TokenWeights.of(self._sis_config)
        self.sis_run = self.sis_client.create_run(
            connection.run_id, incarnation=connection.incarnation, **self._sis_run_settings()
        )
        if self._sis_config.token_table_steps:
            self.add_callback(TokenTablesCallback(self))
        self._sis_head_checked = False
        # While a loss is computed, of each call of the model: [..., H], before the head; and that.
        self._sis_hidden: List[torch.Tensor] = []
        self._sis_head: Optional[Head] = None
        # The optimiser step at which this training began, and the last one that there was.
        self._sis_first_step = 0
        self._sis_last_step = -1
        self._sis_counts = StepCounts()

    def _sis_check_arguments(self, arguments: Any) -> None:
        refusals.check_sharding(arguments)
        check_trackers(self._sis_config.token_table_steps, arguments.report_to or (), "report_to")

    def _sis_check_trainer(self) -> None:
        """Refuses what is known once the trainer is made."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        # The trainer's own steps begin at 0 again, and what it counted of a step that broke off is gone.
        self._sis_first_step = self._sis_last_step + 1
        self._sis_counts.clear()
        return super().train(*args, **kwargs)

    def _sis_step(self) -> int:
        """How many optimiser steps there were, which another training of the same trainer goes on
        counting: neither draws nor versions go back."""
        return self._sis_first_step + int(self.state.global_step)

    def _sis_filters(self) -> Sampling:
        """Of rollouts; before the first, those that are asked for."""
        raise NotImplementedError

    def _sis_run_settings(self) -> Dict[str, Any]:
        config = self._sis_config
        # Rounded or cut, a record doesn't tell whether it has all that the sampler kept.
        exact = self._sis_filters().truncates
        return {
            "seed": self.args.seed if config.seed is None else config.seed,
            "vocabulary_size": self._sis_model().get_output_embeddings().out_features,
            "top_k": config.top_k,
            "mass": 0.0 if exact else config.mass,
            "log_prob_encoding": "float32" if exact else "fixed16",
            "model": label_of(str(getattr(self.model.config, "_name_or_path", ""))),
        }

    def _sis_model(self) -> Any:
        """The model without wrappers and adapters around it; adapters in it stay."""
        model = self.accelerator.unwrap_model(self.model)
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _sis_check_server(self, client: Callable[[], Any]) -> None:
        """On all ranks, of what the main one is told. `client`: TRL's, which the main one has."""
        told = of_the_main_process(self.accelerator, lambda: client().get_server_info())
        refusals.check_vllm_server(told, self._sis_config.top_k)

    @contextlib.contextmanager
    def _sis_seen(self) -> Iterator[None]:
        """Fills _sis_hidden and _sis_head meanwhile."""
        model = self._sis_model()

        def see(_module: Any, _arguments: Any, output: Any) -> None:
            self._sis_hidden.append(output.last_hidden_state)
            # Here, where all ranks come by, whatever their server answers.
            if self._sis_head is None:
                self._sis_head = whole_head(model.get_output_embeddings(), self._sis_learns_by_rows())

        hook = model.base_model.register_forward_hook(see)
        try:
            yield
        finally:
            hook.remove()
            self._sis_hidden, self._sis_head = [], None

    def _sis_learns_by_rows(self) -> bool:
        """Whether the loss has gradients through the log-probs of recorded tokens."""
        return self._sis_filters().truncates

    def _sis_gathered(
        self,
        records: TopKRecords,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        log_probs: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
    ) -> sis.torch.Gathered:
        """What Client.evaluate takes of N positions, with gradients where the loss needs them; with a filter of the
        policy renormalised over what was kept. hidden: [N, H]. mask: bool [N], on the CPU, of those that
        count."""
        head, transform = self._sis_head, LogitTransform.of(self._sis_model().config)
        assert head is not None
        some = torch.arange(len(tokens)) if mask is None else mask.nonzero()[:, 0]
        some = some[:_CHECKED].to(hidden.device)
        if len(some) and not self._sis_head_checked:
            refusals.check_head(
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
        self._sis_counts.add_replayed(records, replay.complete, mask)
        return replay.current

    def _sis_head_type(self, hidden: torch.Tensor) -> torch.dtype:
        """That TRL's head multiplies hidden states and weights in."""
        if getattr(self.args, "cast_lm_head_to_fp32", False):
            return torch.float32
        device = hidden.device.type
        with self.accelerator.autocast():
            return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype

    def _sis_log(self) -> None:
        """Once per optimiser step, of all ranks: into the trainer's own metrics."""
        if not self.accelerator.sync_gradients:
            return

        def summed(numbers: List[float]) -> List[float]:
            everywhere = torch.tensor(numbers, dtype=torch.float64, device=self.accelerator.device)
            return self.accelerator.reduce(everywhere, reduction="sum").tolist()

        # TRL leaves out what is NaN.
        for name, value in self._sis_counts.metrics(summed, self._sis_filters().truncates).items():
            self._metrics["train"][f"sis/{name}"].append(value)
