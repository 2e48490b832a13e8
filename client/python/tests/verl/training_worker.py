"""verl's own TrainingWorker with its FSDP2 engine, on one or more ranks over gloo, without Ray; and
rollouts for it, of a tiny model."""

import functools
import os
from dataclasses import dataclass

import numpy as np
import torch

import sis
from sis.integrations._names import name_of

VOCABULARY = 128
# Padded lengths of prompts and responses, in tokens.
PROMPT, RESPONSE = 6, 16


def environment(rank, world_size, port):
    """Before verl is imported."""
    os.environ.update(
        VERL_USE_EXTERNAL_MODULES="cpu_platform", VERL_PLATFORM="cpu", VERL_ENGINE_DEVICE="cuda", HF_HUB_OFFLINE="1",
        RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        VERL_USE_EXTERNAL_PLUGINS="none",
    )  # fmt: skip


def make_worker(path, micro_batch=4, dynamic=False, remove_padding=False, sequence_parallel=1):
    """With remove_padding the attention is packed_attention's."""
    import packed_attention
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import (
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
        TrainingWorkerConfig,
    )
    from verl.workers.engine_workers import TrainingWorker

    if remove_padding:
        packed_attention.install()
    model = HFModelConfig(
        path=path, use_remove_padding=remove_padding, enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "packed" if remove_padding else "eager"},
    )  # fmt: skip
    engine = FSDPEngineConfig(
        strategy="fsdp2", model_dtype="fp32", mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32"},
        use_torch_compile=False, use_dynamic_bsz=dynamic, micro_batch_size_per_gpu=micro_batch,
        infer_micro_batch_size_per_gpu=micro_batch, max_token_len_per_gpu=3 * (PROMPT + RESPONSE),
        ulysses_sequence_parallel_size=sequence_parallel,
    )  # fmt: skip
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model", model_config=model, engine_config=engine,
            optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=100),
            checkpoint_config=CheckpointConfig(),
        )
    )  # fmt: skip
    worker.reset()
    set_loss(worker)
    return worker


def set_loss(worker):
    """Gives the worker the loss of an actor's default configuration."""
    from verl.workers.utils.losses import ppo_loss

    worker.set_loss_fn(functools.partial(ppo_loss, config=actor_config(worker)))


def actor_config(worker):
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig

    engine = worker.engine_config
    return FSDPActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_mini_batch_size=8,
        ppo_micro_batch_size_per_gpu=engine.micro_batch_size_per_gpu, use_dynamic_bsz=engine.use_dynamic_bsz,
        loss_agg_mode="token-mean", policy_loss=PolicyLossConfig(loss_mode="vanilla"),
    )  # fmt: skip


@dataclass
class Turn:
    """The tokens that one request generated."""

    name: str
    record: sis.TopK
    # The index of its first token in the sample.
    start: int
    # [T, V], over the whole vocabulary.
    log_probs: torch.Tensor


@dataclass
class Sample:
    prompt: list
    # Per token: id, whether the model generated it, and its log-prob (0 where a tool wrote).
    tokens: list
    mask: list
    log_probs: list
    turns: list


@torch.no_grad()
def draw(model, context, length, **filters):
    """Draws `length` tokens. Returns tokens [T], and the log-probs that each was drawn from, nats [T, V]."""
    before = torch.tensor([context])
    made = model.generate(
        before, attention_mask=torch.ones_like(before), do_sample=True, max_new_tokens=length,
        min_new_tokens=length, eos_token_id=None, return_dict_in_generate=True, output_scores=True,
        **{"top_k": 0, **filters},
    )  # fmt: skip
    log_probs = torch.stack([scores[0].float() for scores in made.scores]).log_softmax(-1)
    return made.sequences[0, len(context) :], log_probs


def rollout(model, count, top_k, seed, **filters):
    """Samples of different lengths; every third one has two turns, with a tool's answer between."""
    torch.manual_seed(seed)
    samples = []
    for index in range(count):
        prompt = torch.randint(3, VOCABULARY, (PROMPT - index % 3,)).tolist()
        sample = Sample(prompt, [], [], [], [])
        lengths = (5, 6) if index % 3 == 0 else (RESPONSE - index % 4,)
        for number, length in enumerate(lengths):
            if number:
                answer = torch.randint(3, VOCABULARY, (4,)).tolist()
                sample.tokens += answer
                sample.mask += [0] * len(answer)
                sample.log_probs += [0.0] * len(answer)
            context = prompt + sample.tokens
            drawn, log_probs = draw(model, context, length, **filters)
            top, own = log_probs.topk(top_k), log_probs.gather(1, drawn[:, None])[:, 0]
            record = sis.canonical(top.indices, top.values, drawn, own, top_k)
            sample.turns.append(Turn(name_of(context, drawn, own), record, len(sample.tokens), log_probs))
            sample.tokens += drawn.tolist()
            sample.mask += [1] * length
            sample.log_probs += own.tolist()
        samples.append(sample)
    return samples


def append(client, run, samples, policy_version=0):
    with client.append(run, sampling=sis.Sampling("processed")) as stream:
        for sample in samples:
            for turn in sample.turns:
                stream.block(
                    turn.name, first_position=0, policy_version=policy_version,
                    **turn.record._asdict(),
                )  # fmt: skip
                stream.seal(turn.name, length=len(turn.record.sampled_ids))


def batch(samples, seed=0, **non_tensor):
    """As verl's trainer gives it to `update_actor`, of left padded prompts and right padded
    responses. Its old_log_probs are of nobody."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils
    from verl.workers.utils.padding import left_right_2_no_padding

    def responses(rows, dtype=torch.long):
        return torch.tensor([row + [0] * (RESPONSE - len(row)) for row in rows], dtype=dtype)

    prompts = torch.tensor([[0] * (PROMPT - len(sample.prompt)) + sample.prompt for sample in samples])
    inside = responses([[1] * len(sample.tokens) for sample in samples])
    before = torch.tensor([[0] * (PROMPT - len(s.prompt)) + [1] * len(s.prompt) for s in samples])
    attention = torch.cat([before, inside], 1)
    tokens = responses([sample.tokens for sample in samples])
    generator = np.random.default_rng(seed)
    advantages = torch.tensor(generator.normal(size=len(samples)), dtype=torch.float32)[:, None] * inside
    data = TensorDict(
        {
            "input_ids": torch.cat([prompts, tokens], 1), "attention_mask": attention,
            "position_ids": (attention.cumsum(1) - 1).clamp(min=0), "prompts": prompts, "responses": tokens,
            "response_mask": responses([sample.mask for sample in samples]),
            "rollout_log_probs": responses([sample.log_probs for sample in samples], torch.float32),
            "old_log_probs": torch.zeros(tokens.shape), "advantages": advantages,
        },
        batch_size=len(samples),
    )  # fmt: skip
    data = left_right_2_no_padding(data)
    tensordict_utils.assign_non_tensor(
        data, calculate_entropy=False, global_batch_size=len(samples), compute_loss=True,
        **{"temperature": 1.0, **non_tensor},
    )  # fmt: skip
    return data


def recompute(worker, data):
    """The old log-probs, found as verl's trainer has the actor find them."""
    from verl.utils import tensordict_utils
    from verl.workers.utils.padding import no_padding_2_padding

    tensordict_utils.assign_non_tensor(data, compute_loss=False)
    found = worker.infer_batch(data)
    tensordict_utils.assign_non_tensor(data, compute_loss=True)
    return no_padding_2_padding(found["log_probs"], data)


def move(model):
    """Its weights, as updates would."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)


class Gradients:
    """The gradients that the optimiser got, step by step: [{parameter: tensor}]. With `frozen`, weights stay."""

    def __init__(self, worker, frozen=True):
        self.steps = []
        engine, stock = worker.engine, worker.engine.optimizer_step

        def noted():
            self.steps.append(
                {
                    name: (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad).clone()
                    for name, p in engine.module.named_parameters()
                }
            )
            return torch.tensor(0.0) if frozen else stock()

        engine.optimizer_step = noted


def detach(worker):
    """Undoes attach and Gradients."""
    for name in ("train_mini_batch", "infer_batch"):
        worker.__dict__.pop(name, None)
    for name in ("train_batch", "infer_batch", "optimizer_step"):
        worker.engine.__dict__.pop(name, None)
