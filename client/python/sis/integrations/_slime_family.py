"""Shared by the modules for slime and for Miles and vime, which are derived from it. The engine's policy is recorded
while it generates, and old log-probs are the engine's."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import itertools
import math
import threading
from typing import Any, Awaitable, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import torch
from transformers import AutoConfig

from sis.engines._adapter import Adapter
from sis.engines.sglang import SglangAdapter
from sis.integrations._config import SisConfig, vocabulary_size
from sis.integrations._names import name_of
from sis.integrations._old_log_probs import OldLogProbs
from sis.integrations._recorded_answers import AnswerRecorder
from sis.integrations._refusals import Needed, check
from sis._records import Slice
from sis._run import label_of
from sis._versions import warn_unless_tested

_NEEDED: Needed = {
    "loss_type": ("custom_loss", "the loss is to be that of SIS"),
    "use_rollout_logprobs": (True, "the engine's policy is what is recorded"),
    "tensor_model_parallel_size": (1, "SIS needs whole rows of logits"),
    "context_parallel_size": (1, "SIS needs whole sequences"),
    "partial_rollout": (False, "SIS needs responses of one request each"),
}  # fmt: skip
_CORRECTIONS: Needed = {
    "get_mismatch_metrics": (False, "it corrects, or compares with, other old log-probs"),
    "use_tis": (False, "it corrects a second time"),
    "use_opsm": (False, "it compares with old log-probs that are no longer there"),
}  # fmt: skip
_HOOKS = ("custom_generate_function_path", "custom_megatron_before_train_step_hook_path")

# Per sample, [T, ...] of its response's tokens.
PerSample = Sequence[torch.Tensor]
Loss = Tuple[torch.Tensor, Dict[str, Any]]


class Engine:
    """The engine that generates: SGLang. A subclass is another one."""

    def check(self, args: Any, top_k: int) -> None:
        """Raises ValueError before the first request if SIS does not support the framework's arguments."""
        self.adapter(args, {name: getattr(args, f"rollout_{name}") for name in ("temperature", "top_p", "top_k")})

    def asked(self, payload: Dict[str, Any], top_k: int) -> Dict[str, Any]:
        """Returns a request's payload with K tokens listed."""
        return {**payload, "top_logprobs_num": top_k}

    def adapter(self, args: Any, sampling_params: Dict[str, Any]) -> Adapter:
        """Returns the adapter of a request. Raises ValueError if SIS does not support its sampling parameters."""
        names = ("speculative_algorithm", "preferred_sampling_params")
        return SglangAdapter(sampling_params, {name: getattr(args, f"sglang_{name}", None) for name in names})

    def output_of(self, answer: Any) -> Any:
        """Returns the adapter's input."""
        return answer


class Framework(NamedTuple):
    """A framework of the family.

    Attributes:
        name: Its module in sis.integrations, and the environment in which it was run (sis._versions).
        package: Its Python package.
        policy_loss: Its policy_loss_function.
        needed: Arguments that it needs, next to those that all need.
        engine: Its engine.
    """

    name: str
    package: str
    policy_loss: Callable[..., Loss]
    needed: Needed = {}
    engine: Engine = Engine()

    def check_arguments(self, args: Any, config: SisConfig) -> None:
        """Raises ValueError if SIS does not support these arguments."""
        needed = {**_NEEDED, **({} if config.observe else _CORRECTIONS), **self.needed}
        if config.rule is not None:
            needed["use_unbiased_kl"] = (False, f"{config.rule} leaves it no ratio")
        check(args, needed)
        for name in _HOOKS:
            if getattr(args, name) is None:
                raise ValueError(f"{name} is None: set it to the function of sis.integrations.{self.name}")
        if config.rule is not None and args.advantage_estimator == "gspo":
            raise ValueError(f"advantage_estimator is 'gspo', but {config.rule} gives each token a weight: set another")
        self.engine.check(args, config.top_k)


class Connection(OldLogProbs):
    """The run of this process, which generates or trains."""

    def __init__(self, framework: Framework, args: Any) -> None:
        """Creates the run.

        Args:
            framework: The framework.
            args: Its arguments, with the settings as a mapping `sis`. The run names this start of the training and no
                other, because the framework counts its weights from 0 again.

        Raises:
            ValueError: There are no settings, or SIS does not support the arguments.
        """
        if getattr(args, "sis", None) is None:
            raise ValueError("custom_config_path names no file with sis: {address: ..., run: ...}")
        config = SisConfig.of(args.sis, "sis")
        warn_unless_tested(framework.name, framework.package)
        framework.check_arguments(args, config)
        self._engine, self._args = framework.engine, args
        # Megatron itself knows the vocabulary only on the ranks that train, later, and padded.
        hf_config = AutoConfig.from_pretrained(args.hf_checkpoint, trust_remote_code=True)
        super().__init__(
            config,
            vocabulary_size(hf_config),
            algorithm=args.advantage_estimator,
            model=label_of(str(args.hf_checkpoint)),
        )
        self._recorder = AnswerRecorder(self.client, self.run)

    def record(self, sample: Any, sampling_params: Dict[str, Any], answer: Any) -> None:
        """Records the answer to a sample's only request; returns once it is stored, or given up."""
        length = sample.response_length
        if not length or sample.status == sample.Status.ABORTED:
            return
        adapter = self._engine.adapter(self._args, sampling_params)
        tokens = sample.tokens[-length:]
        name = name_of(sample.tokens[:-length], tokens, sample.rollout_log_probs)
        self._recorder.record(name, tokens, adapter, self._engine.output_of(answer))


class _Responses:
    """The responses of a micro-batch, one after the other, instead of a sis.torch.PaddedBatch: [1, N]."""

    def __init__(self, names: Sequence[str], masks: PerSample, rows: torch.Tensor) -> None:
        """rows: int [N], the rows of the logits that predict the tokens."""
        # A sample that was drawn twice has one record. A request must have each position once.
        slices: Dict[str, Slice] = {}
        begins: Dict[str, int] = {}
        kept, of_each = [], []
        begin = asked = 0
        for name, length in zip(names, map(len, masks)):
            if length and name not in slices:
                slices[name], begins[name] = Slice(name, length=length), asked
                kept.append(torch.arange(begin, begin + length))
                asked += length
            of_each.append(torch.arange(length) + begins.get(name, 0))
            begin += length
        self.slices = tuple(slices.values())
        # int [asked], indices into the N tokens; and int [N], indices into the asked ones.
        self._kept, self._of_each = torch.cat(kept or of_each), torch.cat(of_each)
        self.mask, self.rows = torch.cat(list(masks)).bool().cpu()[self._kept], rows[self._kept]

    def flat(self, values: torch.Tensor) -> torch.Tensor:
        return values[0, self._kept.to(values.device)]

    def padded(self, values: torch.Tensor, fill: Any) -> torch.Tensor:
        return values[self._of_each.to(values.device)][None]


class Process:
    """A process that generates or trains.

    Attributes:
        framework: The framework.
        connection: The run; None until it is needed.
        step: Number of the optimiser's next step; None until before_train_step is called.
    """

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        self._connecting = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Begins as a new process does."""
        self.connection: Optional[Connection] = None
        self.step: Optional[int] = None

    def connected(self, args: Any) -> Connection:
        """Returns the connection, which the first call makes.

        Args:
            args: The framework's arguments.

        Returns:
            The connection.
        """
        with self._connecting:
            if self.connection is None:
                self.connection = Connection(self.framework, args)
            return self.connection

    def before_train_step(
        self, args: Any, rollout_id: int, step_id: int, model: Any, optimizer: Any, opt_param_scheduler: Any
    ) -> None:
        """Notes the number of the optimiser's step, which is the draw: Megatron's hook before each step.

        Args:
            args: The framework's arguments.
            rollout_id, step_id, model, optimizer: Ignored.
            opt_param_scheduler: Megatron's scheduler, which counts samples.
        """
        # The scheduler counts samples, and a training that is resumed continues counting.
        self.step = opt_param_scheduler.num_steps // args.global_batch_size

    def loss(
        self,
        args: Any,
        batch: Dict[str, Any],
        logits: torch.Tensor,
        sum_of_sample_mean: Any,
        current_log_probs: Callable[[], PerSample],
        padded: Optional[Sequence[int]] = None,
    ) -> Loss:
        """Returns the framework's own policy loss, with the old log-probs and advantages that SIS makes.

        Args:
            args: The framework's arguments.
            batch: A micro-batch.
            logits: [..., V], the tokens one after the other, or each sample's padded to `padded` tokens.
            sum_of_sample_mean: The framework's reduction.
            current_log_probs: Returns the responses' log-probs; called without gradients.
            padded: Length of each sample's row of logits; None: they are not padded.

        Returns:
            The loss, and metrics by name.

        Raises:
            ValueError: before_train_step was not called.
        """
        old = self.connected(args)
        if self.step is None:
            raise ValueError(
                f"sis.integrations.{self.framework.name}.before_train_step was not called: name it in "
                "custom_megatron_before_train_step_hook_path"
            )
        lengths, totals = batch["response_lengths"], batch["total_lengths"]
        old.step = self.step
        whole, sampling = batch["unconcat_tokens"], batch["rollout_log_probs"]
        prompts = [total - length for total, length in zip(totals, lengths)]
        names = [
            name_of(tokens[:begin].cpu(), tokens[begin:].cpu(), of_one.cpu())
            for tokens, begin, of_one in zip(whole, prompts, sampling)
        ]
        starts = itertools.accumulate(padded or totals, initial=0)
        # The logits of a token are those of the one before it.
        rows = [torch.arange(start + begin, start + total) - 1 for start, begin, total in zip(starts, prompts, totals)]
        responses = _Responses(names, batch["loss_masks"], torch.cat(rows))
        with torch.no_grad():
            current = torch.cat(list(current_log_probs()))
            tokens = torch.cat([of_one[begin:] for of_one, begin in zip(whole, prompts)])
            tempered = logits if args.rollout_temperature == 1 else logits / args.rollout_temperature
            advantages = torch.cat(list(batch["advantages"]))
            of_all = (tokens, tempered.flatten(0, 1), current, torch.cat(list(sampling)), advantages)
            decided = old.decided(responses, *(values[None] for values in of_all))
        if not old.config.observe:
            batch = {
                **batch,
                "rollout_log_probs": decided.old_log_probs(old.config)[0].split(lengths),
                "advantages": decided.advantages(old.config, advantages[None])[0].split(lengths),
            }
        value, metrics = self.framework.policy_loss(args, batch, logits, sum_of_sample_mean)
        # Sums over samples, or over tokens, are divided by their number later.
        of_each = torch.ones_like(advantages)
        for name, mean in old.counts.metrics().items():
            metrics[f"sis/{name}"] = sum_of_sample_mean(of_each * (mean if math.isfinite(mean) else 0.0))
        return value, metrics


def packed_loss(process: Process, log_probs_and_entropy: Callable[..., Any]) -> Callable[..., Loss]:
    """Returns the loss function of slime and vime, whose `log_probs_and_entropy` takes samples one after the other."""

    def loss(args: Any, batch: Dict[str, Any], logits: torch.Tensor, sum_of_sample_mean: Any) -> Loss:
        """Returns the framework's policy_loss_function of the old log-probs and advantages that SIS makes.

        Args:
            args: The framework's arguments.
            batch: A micro-batch.
            logits: [1, N, V], the tokens of all samples one after the other.
            sum_of_sample_mean: The framework's reduction.

        Returns:
            The loss, and metrics by name.
        """
        current = lambda: log_probs_and_entropy(
            logits, args=args, unconcat_tokens=batch["unconcat_tokens"], total_lengths=batch["total_lengths"],
            response_lengths=batch["response_lengths"],
        )[1]["log_probs"]  # fmt: skip
        return process.loss(args, batch, logits, sum_of_sample_mean, current)

    return loss


@dataclasses.dataclass
class _Request:
    top_k: int
    payload: Any = None
    answer: Any = None


class OneTurn:
    """The framework's own generate function, whose answers are recorded.

    There is no hook between a request and its answer, so the function `post` of the framework's module is replaced.
    """

    def __init__(self, process: Process, module: Any) -> None:
        """Replaces `post`.

        Args:
            process: This process.
            module: The framework's module of `generate`.
        """
        self._process, self._module = process, module
        # The request that this task makes.
        self._request: contextvars.ContextVar[_Request] = contextvars.ContextVar("sis.integrations._slime_family")
        self._post, module.post = module.post, self._post_and_keep

    async def _post_and_keep(self, url: str, payload: Dict[str, Any], **others: Any) -> Any:
        request = self._request.get(None)
        # Posts before a generation, such as those that read images, have no request.
        if request is None or "sampling_params" not in payload:
            return await self._post(url, payload, **others)
        request.payload = self._process.framework.engine.asked(payload, request.top_k)
        request.answer = await self._post(url, request.payload, **others)
        return request.answer

    async def generate(self, args: Any, sample: Any, sampling_params: Dict[str, Any], evaluation: bool = False) -> Any:
        """Generates one turn by the framework's own function, and records it unless it is an evaluation.

        Args:
            args: The framework's arguments.
            sample: A sample with a prompt.
            sampling_params: Sampling parameters of the request.
            evaluation: Whether it is an evaluation.

        Returns:
            The sample with its response.
        """
        turn = functools.partial(self._module.generate, args, sample, sampling_params)
        return await (turn() if evaluation else self.recorded(args, sample, turn))

    async def recorded(self, args: Any, sample: Any, turn: Callable[[], Awaitable[Any]]) -> Any:
        """Awaits a turn, and records its answer.

        Args:
            args: The framework's arguments.
            sample: The turn's sample, to which it adds the response.
            turn: Calls the framework's own generate function.

        Returns:
            The turn's result.
        """
        connection = await asyncio.to_thread(self._process.connected, args)
        if sample.response_length:
            _begin_anew(sample)
        request = _Request(connection.config.top_k)
        # Each sample has a task of its own, or waits for the one before it.
        of_before = self._request.set(request)
        try:
            result = await turn()
        finally:
            self._request.reset(of_before)
        if request.answer is not None:
            await asyncio.to_thread(connection.record, sample, request.payload["sampling_params"], request.answer)
        return result


def _begin_anew(sample: Any) -> None:
    """Discards what an aborted request of fully asynchronous rollouts generated: a record has one request."""
    sample.tokens = sample.tokens[: -sample.response_length]
    sample.response, sample.response_length, sample.weight_versions = "", 0, []
    sample.loss_mask = sample.rollout_log_probs = sample.rollout_routed_experts = None
