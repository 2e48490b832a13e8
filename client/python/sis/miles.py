"""Miles: its policy loss, with accepted tokens at ratio 1. What SGLang tells of its policy is recorded
while it generates, and old log-probs are the engine's. With

    --custom-generate-function-path sis.miles.generate
    --loss-type custom_loss --custom-loss-function-path sis.miles.loss
    --custom-megatron-before-train-step-hook-path sis.miles.before_train_step
    --use-rollout-logprobs --custom-config-path FILE

and in FILE `sis: {address: "localhost:50051", run: my-training}`, or more of what `_Connection` takes.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from typing import Any, Dict, Optional, Sequence, Tuple, Union

import grpc
import torch
from miles.backends.training_utils.loss import get_log_probs_and_entropy, policy_loss_function
from miles.rollout.base_types import GenerateFnInput, GenerateFnOutput
from miles.rollout.generate_hub import single_turn
from miles.rollout.generate_utils.generate_endpoint_utils import (
    compute_prompt_ids_from_sample,
    compute_request_payload,
    update_sample_from_response,
)
from miles.utils.http_utils import post
from transformers import AutoConfig

from sis import errors
from sis.client import Client
from sis.engines.sglang import SglangAdapter
from sis.entries import Block, Seal
from sis.old_log_probs import OldLogProbs
from sis.outage import Outage
from sis.records import Slice
from sis.run import check_id, label_of
from sis.token_weights import TokenWeights
from sis.verl.names import name_of
from sis.versions import warn_unless_tested

# By argument of Miles: what it must be, and why.
_NEEDED = {
    "loss_type": ("custom_loss", "sis.miles.loss is to be the loss"),
    "use_rollout_logprobs": (True, "the engine's policy is what is recorded"),
    "tensor_model_parallel_size": (1, "SIS needs whole rows of logits"),
    "context_parallel_size": (1, "SIS needs whole sequences"),
    "partial_rollout": (False, "SIS needs responses of one request each"),
    "true_on_policy_mode": (False, "it rounds the log-probs by which records are found"),
    "get_mismatch_metrics": (False, "it corrects, or compares with, other old log-probs"),
    "use_tis": (False, "it corrects a second time"),
    "use_opsm": (False, "it compares with old log-probs that are no longer there"),
    "lora_rank": (0, "requests name no adapter"),
    "lora_adapter_path": (None, "requests name no adapter"),
}  # fmt: skip
_HOOKS = ("custom_generate_function_path", "custom_megatron_before_train_step_hook_path")


def check_arguments(args: Any, weights: TokenWeights) -> None:
    """ValueError if SIS can't go with these arguments of Miles."""
    for name, (needed, why) in _NEEDED.items():
        value = getattr(args, name)
        if value != needed:
            raise ValueError(f"{name} is {value!r}: {why}. Set it to {needed!r}")
    for name in _HOOKS:
        if getattr(args, name) is None:
            raise ValueError(f"{name} is None: set it to the function of sis.miles")
    if any("RadixTreeMiddleware" in path for path in args.miles_router_middleware_paths):
        raise ValueError("miles_router_middleware_paths has RadixTreeMiddleware, which changes tokens: leave it out")
    if weights.rule is not None and args.advantage_estimator == "gspo":
        raise ValueError(f"advantage_estimator is 'gspo', but {weights.rule} gives each token a weight: set another")
    if weights.rule is not None and args.use_unbiased_kl:
        raise ValueError(f"use_unbiased_kl is True, but {weights.rule} leaves it no ratio: set it to False")
    _adapter(args, {name: getattr(args, f"rollout_{name}") for name in ("temperature", "top_p", "top_k")})


def _adapter(args: Any, sampling_params: Dict[str, Any]) -> SglangAdapter:
    names = ("speculative_algorithm", "preferred_sampling_params")
    return SglangAdapter(sampling_params, {name: getattr(args, f"sglang_{name}", None) for name in names})


class _Connection:
    """Of this process, which generates or trains, as the arguments' `sis` says."""

    def __init__(
        self,
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
        for Miles counts its weights anew. weight, soft_acceptance, damped_truncation:
        sis.token_weights.TokenWeights. top_k, settings: as in Client.create_run."""
        warn_unless_tested("miles", "miles-rl")
        weights = TokenWeights(weight, soft_acceptance, damped_truncation)
        check_arguments(args, weights)
        check_id(run)
        self._args = args
        self._client = Client([address] if isinstance(address, str) else list(address))
        # Of the ranks that train Miles itself knows the vocabulary only later, and padded.
        config = AutoConfig.from_pretrained(args.hf_checkpoint, trust_remote_code=True).get_text_config()
        settings = {"seed": 0, "time_to_live": 3600.0, "top_k": top_k, "vocabulary_size": config.vocab_size, **settings}
        labels = {"algorithm": args.advantage_estimator, "model": label_of(str(args.hf_checkpoint))}
        self.run = self._client.create_run(run, **labels, **settings)
        self.old = OldLogProbs(self._client, self.run, **vars(weights))
        self._outage = Outage()
        self._advancing = threading.Lock()
        # How often the engine's weights were updated, as the run was told.
        self._policy_version = 0

    def record(self, sample: Any, sampling_params: Dict[str, Any], answer: Any) -> None:
        """Returns once it is stored, or given up."""
        length = sample.response_length
        told = str(answer["meta_info"].get("weight_version"))
        version = int(told) if told.isdigit() else 0
        with self._advancing:
            if version > self._policy_version:
                advance = lambda: self._client.advance_version(self.run, version)
                self._outage.asked("the policy version is not told", advance)
                self._policy_version = version
        adapter = _adapter(self._args, sampling_params)
        name = name_of(sample.tokens[:-length], sample.tokens[-length:], sample.rollout_log_probs)
        entries = [Block(name, 0, version, *adapter.record(answer, self.run.config.top_k)), Seal(name, length)]
        append = lambda: self._client.append_many(self.run, entries, sampling=adapter.sampling)
        try:
            self._outage.asked("rollouts are not recorded", append)
        except errors.AppendError as error:
            # The same sample was drawn before, of the same policy: its record serves both.
            if any(one.code != grpc.StatusCode.ALREADY_EXISTS for one in error.refused):
                raise


_connecting = threading.Lock()
_connection: Optional[_Connection] = None
# Of the optimiser, which comes next; None until before_train_step is called.
_step: Optional[int] = None


def _connected(args: Any) -> _Connection:
    global _connection
    with _connecting:
        if _connection is None:
            settings = getattr(args, "sis", None)
            if settings is None:
                raise ValueError("custom_config_path names no file with sis: {address: ..., run: ...}")
            _connection = _Connection(args, **settings)
        return _connection


async def generate(input: GenerateFnInput) -> GenerateFnOutput:
    """Of one turn, as Miles's own, and recorded, but for evaluations."""
    if input.evaluation:
        return await single_turn.generate(input)
    args, sample = input.args, input.sample
    connection = await asyncio.to_thread(_connected, args)
    prompt = compute_prompt_ids_from_sample(input.state, sample)
    payload, status = compute_request_payload(args, prompt, input.sampling_params, sample.multimodal_inputs)
    if payload is None:
        sample.status = status
        return GenerateFnOutput(samples=sample)
    payload["top_logprobs_num"] = connection.run.config.top_k
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    # As Miles's own does.
    by_session = args.sglang_router_policy == "consistent_hashing" and sample.session_id
    answer = await post(url, payload, headers={"X-SMG-Routing-Key": sample.session_id} if by_session else None)
    await update_sample_from_response(args, sample, payload=payload, output=answer)
    if sample.response_length and sample.status != sample.Status.ABORTED:
        await asyncio.to_thread(connection.record, sample, payload["sampling_params"], answer)
    return GenerateFnOutput(samples=sample)


def before_train_step(
    args: Any, rollout_id: int, step_id: int, model: Any, optimizer: Any, opt_param_scheduler: Any
) -> None:
    """Notes the optimiser's step, which is the draw."""
    global _step
    # It counts samples, and a training that is resumed goes on counting.
    _step = opt_param_scheduler.num_steps // args.global_batch_size


class _Responses:
    """Of a micro-batch, one after the other, for OldLogProbs in a PaddedBatch's place: [1, N] each."""

    def __init__(self, names: Sequence[str], masks: Sequence[torch.Tensor], rows: torch.Tensor) -> None:
        """rows: int [N], which of the logits [1, T, V] are those of the tokens."""
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


def loss(
    args: Any, batch: Dict[str, Any], logits: torch.Tensor, sum_of_sample_mean: Any
) -> Tuple[torch.Tensor, Dict[str, Any]]:
    """Miles's policy_loss_function, of old log-probs and advantages as SIS makes them."""
    connection = _connected(args)
    if _step is None:
        raise ValueError(
            "sis.miles.before_train_step was not called: it is to be custom_megatron_before_train_step_hook_path"
        )
    old, lengths, totals = connection.old, batch["response_lengths"], batch["total_lengths"]
    old.step = _step
    whole, sampling, padded = batch["unconcat_tokens"], batch["rollout_log_probs"], batch.get("max_seq_lens")
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
        current = get_log_probs_and_entropy(
            logits, args=args, unconcat_tokens=whole, total_lengths=totals, response_lengths=lengths,
            max_seq_lens=padded,
        )["log_probs"]  # fmt: skip
        tokens = torch.cat([of_one[begin:] for of_one, begin in zip(whole, prompts)])
        tempered = logits if args.rollout_temperature == 1 else logits / args.rollout_temperature
        of_all = (tokens, tempered.flatten(0, 1), torch.cat(current), torch.cat(sampling))
        decided = old.decided(responses, *(values[None] for values in of_all))
    advantages = old.weights.advantages(decided, torch.cat(batch["advantages"])[None])[0]
    changed = {
        **batch,
        "rollout_log_probs": old.weights.old_log_probs(decided)[0].split(lengths),
        "advantages": advantages.split(lengths),
    }
    value, metrics = policy_loss_function(args, changed, logits, sum_of_sample_mean)
    # Miles divides its sums over samples, or over tokens, by their number.
    of_each = torch.ones_like(advantages)
    for name, mean in old.metrics().items():
        metrics[f"sis/{name}"] = sum_of_sample_mean(of_each * (mean if math.isfinite(mean) else 0.0))
    return value, metrics
