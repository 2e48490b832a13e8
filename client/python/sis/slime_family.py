"""What the modules for slime and for Miles and vime, which came of it, have in common. The engine, SGLang or
vLLM, tells its policy while it generates, which is recorded, and old log-probs are the engine's."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import itertools
import math
import threading
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from transformers import AutoConfig

from sis.client import Client
from sis.engines.adapter import Adapter
from sis.engines.sglang import SglangAdapter
from sis.old_log_probs import OldLogProbs
from sis.recorded_answers import AnswerRecorder, Span, sglang_answer
from sis.records import Slice
from sis.run import check_id, label_of
from sis.token_weights import TokenWeights
from sis.verl.names import name_of
from sis.versions import warn_unless_tested

# By argument: what it must be, and why.
Needed = Dict[str, Tuple[Any, str]]
_NEEDED: Needed = {
    "loss_type": ("custom_loss", "the loss is to be that of SIS"),
    "use_rollout_logprobs": (True, "the engine's policy is what is recorded"),
    "tensor_model_parallel_size": (1, "SIS needs whole rows of logits"),
    "context_parallel_size": (1, "SIS needs whole sequences"),
    "partial_rollout": (False, "SIS needs responses of one request each"),
    "get_mismatch_metrics": (False, "it corrects, or compares with, other old log-probs"),
    "use_tis": (False, "it corrects a second time"),
    "use_opsm": (False, "it compares with old log-probs that are no longer there"),
}  # fmt: skip
_HOOKS = ("custom_generate_function_path", "custom_megatron_before_train_step_hook_path")

# Per sample, [T, ...] of its response's tokens.
PerSample = Sequence[torch.Tensor]
Loss = Tuple[torch.Tensor, Dict[str, Any]]


class Engine(NamedTuple):
    # Of a request's payload and K: one that has the K most probable tokens listed.
    asked: Callable[[Dict[str, Any], int], Dict[str, Any]]
    # Of an answer: what the adapter reads, and which weights generated it.
    told: Callable[[Any], Tuple[Any, Sequence[Span]]]
    # Of the arguments and a request's sampling parameters. ValueError if SIS can't go with them.
    adapter: Callable[[Any, Dict[str, Any]], Adapter]
    # Of the arguments and K. ValueError likewise, before the first request.
    check_arguments: Callable[[Any, int], None]


def _of_sglang(args: Any, sampling_params: Dict[str, Any]) -> SglangAdapter:
    names = ("speculative_algorithm", "preferred_sampling_params")
    return SglangAdapter(sampling_params, {name: getattr(args, f"sglang_{name}", None) for name in names})


def _check_sglang(args: Any, top_k: int) -> None:
    _of_sglang(args, {name: getattr(args, f"rollout_{name}") for name in ("temperature", "top_p", "top_k")})


SGLANG = Engine(
    asked=lambda payload, top_k: {**payload, "top_logprobs_num": top_k},
    told=sglang_answer,
    adapter=_of_sglang,
    check_arguments=_check_sglang,
)


class Framework(NamedTuple):
    # The module of sis, and the environment in which it was run (sis.versions).
    name: str
    package: str
    # Beside what all of them need.
    needed: Needed
    # policy_loss_function.
    policy_loss: Callable[..., Loss]
    engine: Engine = SGLANG

    def check_arguments(self, args: Any, weights: TokenWeights, top_k: int) -> None:
        """ValueError if SIS can't go with these arguments."""
        for name, (needed, why) in {**_NEEDED, **self.needed}.items():
            value = getattr(args, name)
            if value != needed:
                raise ValueError(f"{name} is {value!r}: {why}. Set it to {needed!r}")
        for name in _HOOKS:
            if getattr(args, name) is None:
                raise ValueError(f"{name} is None: set it to the function of sis.{self.name}")
        if weights.rule is not None and args.advantage_estimator == "gspo":
            raise ValueError(
                f"advantage_estimator is 'gspo', but {weights.rule} gives each token a weight: set another"
            )
        if weights.rule is not None and args.use_unbiased_kl:
            raise ValueError(f"use_unbiased_kl is True, but {weights.rule} leaves it no ratio: set it to False")
        self.engine.check_arguments(args, top_k)


class Connection:
    """Of this process, which generates or trains, as the arguments' `sis` says."""

    def __init__(
        self,
        framework: Framework,
        args: Any,
        address: Union[str, Sequence[str]],
        run: str,
        top_k: int = 20,
        weight: str = "sampled",
        soft_acceptance: bool = False,
        damped_truncation: Union[bool, str] = False,
        **settings: Any,
    ) -> None:
        """address: of a server, or those of all replicas. run: names this start of the training and no other,
        for the framework counts its weights anew. weight, soft_acceptance, damped_truncation:
        sis.token_weights.TokenWeights. top_k, settings: as in Client.create_run."""
        warn_unless_tested(framework.name, framework.package)
        weights = TokenWeights(weight, soft_acceptance, damped_truncation)
        framework.check_arguments(args, weights, top_k)
        check_id(run)
        self._engine, self._args = framework.engine, args
        self._client = Client([address] if isinstance(address, str) else list(address))
        # Of the ranks that train Megatron itself knows the vocabulary only later, and padded.
        config = AutoConfig.from_pretrained(args.hf_checkpoint, trust_remote_code=True).get_text_config()
        settings = {"seed": 0, "time_to_live": 3600.0, "top_k": top_k, "vocabulary_size": config.vocab_size, **settings}
        labels = {"algorithm": args.advantage_estimator, "model": label_of(str(args.hf_checkpoint))}
        self.run = self._client.create_run(run, **labels, **settings)
        self.old = OldLogProbs(self._client, self.run, **vars(weights))
        self._recorder = AnswerRecorder(self._client, self.run)

    @property
    def top_k(self) -> int:
        return self.run.config.top_k

    def record(self, sample: Any, sampling_params: Dict[str, Any], answer: Any) -> None:
        """Of one request, from the sample's prompt on. Returns once it is stored, or given up."""
        length = sample.response_length
        if not length or sample.status == sample.Status.ABORTED:
            return
        output, spans = self._engine.told(answer)
        adapter = self._engine.adapter(self._args, sampling_params)
        tokens = sample.tokens[-length:]
        name = name_of(sample.tokens[:-length], tokens, sample.rollout_log_probs)
        self._recorder.record(name, tokens, adapter, output, spans)


class _Responses:
    """Of a micro-batch, one after the other, for OldLogProbs in a PaddedBatch's place: [1, N] each."""

    def __init__(self, names: Sequence[str], masks: PerSample, rows: torch.Tensor) -> None:
        """rows: int [N], which of the logits are those of the tokens."""
        # A sample that was drawn twice has one record, of which a request takes each position once.
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
        # int [asked], of the N; and int [N], of those.
        self._kept, self._of_each = torch.cat(kept or of_each), torch.cat(of_each)
        self.mask, self.rows = torch.cat(list(masks)).bool().cpu()[self._kept], rows[self._kept]

    def flat(self, values: torch.Tensor) -> torch.Tensor:
        return values[0, self._kept.to(values.device)]

    def padded(self, values: torch.Tensor, fill: Any) -> torch.Tensor:
        return values[self._of_each.to(values.device)][None]


class Process:
    """One that generates or trains."""

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        self._connecting = threading.Lock()
        self.forget()

    def forget(self) -> None:
        self.connection: Optional[Connection] = None
        # Of the optimiser, which comes next; None until before_train_step is called.
        self.step: Optional[int] = None

    def connected(self, args: Any) -> Connection:
        with self._connecting:
            if self.connection is None:
                settings = getattr(args, "sis", None)
                if settings is None:
                    raise ValueError("custom_config_path names no file with sis: {address: ..., run: ...}")
                self.connection = Connection(self.framework, args, **settings)
            return self.connection

    def before_train_step(
        self, args: Any, rollout_id: int, step_id: int, model: Any, optimizer: Any, opt_param_scheduler: Any
    ) -> None:
        """Notes the optimiser's step, which is the draw."""
        # It counts samples, and a training that is resumed goes on counting.
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
        """The framework's own policy loss, of old log-probs and advantages as SIS makes them.

        logits [..., V]: the micro-batch's tokens one after the other, or, where `padded` tells to how many,
        each sample's in a row of its own. current_log_probs: called without gradients.
        """
        connection = self.connected(args)
        if self.step is None:
            raise ValueError(
                f"sis.{self.framework.name}.before_train_step was not called: it is to be "
                "custom_megatron_before_train_step_hook_path"
            )
        old, lengths, totals = connection.old, batch["response_lengths"], batch["total_lengths"]
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
            of_all = (tokens, tempered.flatten(0, 1), current, torch.cat(list(sampling)))
            decided = old.decided(responses, *(values[None] for values in of_all))
        advantages = old.weights.advantages(decided, torch.cat(list(batch["advantages"]))[None])[0]
        changed = {
            **batch,
            "rollout_log_probs": old.weights.old_log_probs(decided)[0].split(lengths),
            "advantages": advantages.split(lengths),
        }
        value, metrics = self.framework.policy_loss(args, changed, logits, sum_of_sample_mean)
        # Sums over samples, or over tokens, are divided by their number later.
        of_each = torch.ones_like(advantages)
        for name, mean in old.metrics().items():
            metrics[f"sis/{name}"] = sum_of_sample_mean(of_each * (mean if math.isfinite(mean) else 0.0))
        return value, metrics


def packed_loss(process: Process, log_probs_and_entropy: Callable[..., Any]) -> Callable[..., Loss]:
    """A loss function of slime and vime. log_probs_and_entropy: theirs, of samples one after the other."""

    def loss(args: Any, batch: Dict[str, Any], logits: torch.Tensor, sum_of_sample_mean: Any) -> Loss:
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
    """A generate function: the framework's own, whose answer is recorded."""

    def __init__(self, process: Process, module: Any) -> None:
        """module: the framework's, of its `generate`. What that calls to post is changed: it has no hook
        between a request and its answer."""
        self._process, self._module = process, module
        # That this task makes.
        self._request: contextvars.ContextVar[_Request] = contextvars.ContextVar("sis.slime_family")
        self._post, module.post = module.post, self._post_and_keep

    async def _post_and_keep(self, url: str, payload: Dict[str, Any], **others: Any) -> Any:
        request = self._request.get(None)
        # What comes before a generation, as to read images, has none.
        if request is None or "sampling_params" not in payload:
            return await self._post(url, payload, **others)
        request.payload = self._process.framework.engine.asked(payload, request.top_k)
        request.answer = await self._post(url, request.payload, **others)
        return request.answer

    async def generate(self, args: Any, sample: Any, sampling_params: Dict[str, Any], evaluation: bool = False) -> Any:
        """Of one turn, by the framework's own function, and recorded, but for evaluations."""
        if evaluation:
            return await self._module.generate(args, sample, sampling_params)
        connection = await asyncio.to_thread(self._process.connected, args)
        if sample.response_length:
            _begin_anew(sample)
        request = _Request(connection.top_k)
        # Each sample has a task of its own, or waits for the one before it.
        of_before = self._request.set(request)
        try:
            sample = await self._module.generate(args, sample, sampling_params)
        finally:
            self._request.reset(of_before)
        if request.answer is not None:
            await asyncio.to_thread(connection.record, sample, request.payload["sampling_params"], request.answer)
        return sample


def _begin_anew(sample: Any) -> None:
    """What was aborted, as fully asynchronous rollouts hand in again: a record is of one request."""
    sample.tokens = sample.tokens[: -sample.response_length]
    sample.response, sample.response_length, sample.weight_versions = "", 0, []
    sample.loss_mask = sample.rollout_log_probs = sample.rollout_routed_experts = None
