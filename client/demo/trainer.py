"""Trains a small transformer by GRPO through a server, on rollouts of an engine whose weights are rounded or old."""

import collections
import copy
import dataclasses
from types import SimpleNamespace
from typing import Dict, List, NamedTuple, Optional

import torch
from torch.nn import functional

import sis
import sis.torch
from client.demo.transformer import STOP, VOCABULARY, Task, Transformer, generate, rounded
from sis.engines.transformers import TransformersAdapter

# Names of the runs, and how a trainer uses the service's decisions.
ARMS = {"grpo": "without SIS", "sis": "with SIS", "damped": "damped truncation"}
_CLIP = 0.2
_GRADIENT_NORM = 1.0
# Supervised training: problems per step, learning rate, largest number of steps, and problems of a trial.
_SUPERVISED_BATCH, _SUPERVISED_RATE, _SUPERVISED_STEPS, _TRIED = 128, 3e-3, 2000, 512


@dataclasses.dataclass(frozen=True)
class Settings:
    # Digits of each of the two numbers that are added.
    digits: int = 1
    # Supervised training ends at this share of right answers.
    accuracy: float = 0.2
    rollouts: int = 40
    prompts: int = 64
    # Per prompt.
    responses: int = 8
    # Optimiser steps per rollout, each with a part of its responses.
    updates: int = 8
    # Whether a rollout begins before each optimiser step, which uses a part of each of the last `updates` rollouts.
    asynchronous: bool = False
    # The run's, in policy versions. None: no limit.
    max_staleness: Optional[int] = None
    # Whether the trainer leaves out tokens that are older. Otherwise they keep their own ratios.
    drops_stale: bool = False
    learning_rate: float = 7e-4
    # Bits of the engine's weights; 0: the trainer's own weights.
    bits: int = 5
    top_k: int = 10


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Measurements of one rollout."""

    number: int
    # Mean over its responses, as the engine sampled them.
    reward: float
    # One per update before the next rollout, in order.
    updates: List[sis.Totals]
    # For k = 1 .. top_k, the last update as if only the k most probable tokens had been recorded.
    by_top_k: List[sis.PrefixPoint]


class Batch(NamedTuple):
    """Responses: B names, tokens int64 [B, prompt + T], mask bool [B, T], the engine's log-probs float32 [B, T] (nats),
    rewards and advantages float32 [B]."""

    names: List[str]
    tokens: torch.Tensor
    mask: torch.Tensor
    log_probs: torch.Tensor
    rewards: torch.Tensor
    advantages: torch.Tensor

    def select(self, rows: List[int]) -> "Batch":
        return Batch([self.names[row] for row in rows], *(values[rows] for values in self[1:]))

    @staticmethod
    def joined(parts: List["Batch"]) -> "Batch":
        names, *values = zip(*parts)
        return Batch(sum(names, []), *map(torch.cat, values))


def _until_stop(tokens: torch.Tensor) -> torch.Tensor:
    """Returns bool [B, T]: true up to the first STOP of each row, with it."""
    stops = (tokens == STOP).long().cumsum(dim=1)
    return stops - (tokens == STOP).long() == 0


def rewards(responses: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """Returns float32 [B]: 1 where a response, up to STOP, is the right answer."""
    said = responses.masked_fill(~_until_stop(responses), STOP)
    said = functional.pad(said, (0, answers.shape[1] - said.shape[1]), value=STOP)
    return ((said == answers).all(dim=1) & (responses == STOP).any(dim=1)).float()


def _batch_of(names: List[str], made: SimpleNamespace, answers: torch.Tensor, responses: int) -> Batch:
    """Returns the batch of what `generate` made: `responses` for each of the prompts that have these right answers."""
    said = made.sequences[:, -len(made.scores) :]
    log_probs = torch.stack(made.scores, dim=1).log_softmax(dim=2).gather(2, said[..., None])[..., 0]
    # All batches have the same width.
    unsaid = (0, answers.shape[1] - said.shape[1])
    tokens, said = (functional.pad(values, unsaid, value=STOP) for values in (made.sequences, said))
    reward = rewards(said, answers.repeat_interleave(responses, dim=0))
    advantages = _advantages(reward, responses)
    return Batch(names, tokens, _until_stop(said), functional.pad(log_probs, unsaid), reward, advantages)


def warmed_up(settings: Settings, seed: int) -> Transformer:
    """Returns a model that was trained with right answers until it gives settings.accuracy of them, which GRPO
    starts from: a policy that is never right gets no reward to learn from."""
    task, generator = Task(settings.digits), torch.Generator().manual_seed(seed)
    model = Transformer(task.prompt + task.answer, generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_SUPERVISED_RATE, weight_decay=0.0)
    for step in range(_SUPERVISED_STEPS):
        if step % 10 == 0:
            prompts, answers = task.draw(_TRIED, generator)
            made = generate(model, prompts, task.answer, generator).sequences[:, task.prompt :]
            if rewards(made, answers).mean() >= settings.accuracy:
                return model
        prompts, answers = task.draw(_SUPERVISED_BATCH, generator)
        logits = model(torch.cat([prompts, answers], dim=1))[:, task.prompt - 1 : -1]
        mask = _until_stop(answers)
        optimizer.zero_grad()
        functional.cross_entropy(logits[mask], answers[mask]).backward()
        optimizer.step()
    raise RuntimeError(f"the transformer did not reach an accuracy of {settings.accuracy} in {step + 1} steps")


def train(address, run_id, arm, seed, settings, start, show=lambda rollout: None):
    """Trains a copy of the model `start`; returns a Rollout for each rollout, and calls show(the last one) after
    each. An exception of `show` ends the training."""
    task, generator = Task(settings.digits), torch.Generator().manual_seed(seed)
    model = copy.deepcopy(start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    # The engine returns what transformers' `generate` returns, and so its adapter reads it.
    adapter = TransformersAdapter(
        SimpleNamespace(do_sample=True, num_beams=1, temperature=1.0, eos_token_id=STOP)
    )
    # Parts of rollouts, by the draw that uses them; and the draws from a rollout to the next.
    due: Dict[int, List[Batch]] = collections.defaultdict(list)
    period = 1 if settings.asynchronous else settings.updates
    measured = []
    with sis.Client(address) as client:
        run = client.create_run(
            run_id, seed=seed, vocabulary_size=VOCABULARY, top_k=settings.top_k, task="addition", algorithm=arm,
            model=f"transformer, engine of {settings.bits or 32} bits", max_staleness=settings.max_staleness,
        )  # fmt: skip
        with sis.engines.Recorder(client, run, adapter, worker="worker-0") as recorder:
            for number in range(settings.rollouts):
                # A rollout worker: generates with the weights that it was given last, and records.
                first = recorder.policy_version = number * period
                engine = rounded(model, settings.bits) if settings.bits else model
                prompts, answers = task.draw(settings.prompts, generator)
                made = generate(
                    engine, prompts.repeat_interleave(settings.responses, dim=0), task.answer, generator
                )
                names = [f"{number}.{row}" for row in range(len(made.sequences))]
                for name, output in zip(names, adapter.rows(made, settings.top_k)):
                    recorder.add(name, output)
                recorder.flush()
                # A trainer: fetches records, and evaluates them before each update.
                batch = _batch_of(names, made, answers, settings.responses)
                for age, part in enumerate(torch.randperm(len(names), generator=generator).chunk(settings.updates)):
                    due[first + age].append(batch.select(part.tolist()))
                evaluations = []
                for draw in range(first, first + period):
                    used = Batch.joined(due.pop(draw))
                    evaluations.append(_update(client, run, settings, arm, model, optimizer, used, draw))
                    client.advance_version(run, draw + 1)
                    client.release(run, used.names)
                updates = [evaluation.totals for evaluation in evaluations]
                by_top_k = list(evaluations[-1].prefix_curve)
                measured.append(Rollout(number, float(batch.rewards.mean()), updates, by_top_k))
                show(measured[-1])
    return measured


def _advantages(reward: torch.Tensor, responses: int) -> torch.Tensor:
    groups = reward.view(-1, responses)
    spread = groups.std(dim=1, keepdim=True) + 1e-4
    return ((groups - groups.mean(dim=1, keepdim=True)) / spread).flatten()


def _update(client, run, settings, arm, model, optimizer, batch, draw):
    """Makes one optimiser step; returns the service's sis.Evaluation of its tokens."""
    padded = sis.torch.PaddedBatch(batch.names, batch.mask)
    prompt = batch.tokens.shape[1] - batch.mask.shape[1]
    tokens = padded.flat(batch.tokens[:, prompt:])
    advantages = padded.flat(batch.advantages[:, None].expand(batch.mask.shape))
    logits = padded.flat(model(batch.tokens)[:, prompt - 1 : -1])
    records = client.fetch_top_k(run, padded.slices)
    gathered = sis.torch.gather(records, logits.detach(), tokens)
    damped = arm == "damped"
    evaluation = client.evaluate(
        run,
        records,
        draw=draw,
        outputs=("accepted", "coefficients") if damped else ("accepted",),
        prefix_curve=range(1, run.config.top_k + 1),
        options=sis.EvaluateOptions(
            mask=padded.mask,
            sampled_ids=tokens,
            algorithm=sis.DampedTruncation() if damped else None,
            advantages=advantages if damped else None,
        ),
        **gathered._asdict(),
    )
    log_probs = logits.log_softmax(dim=1).gather(1, tokens[:, None])[:, 0]
    if damped:
        objective = sis.torch.tensor(evaluation.coefficients) * advantages * log_probs
    else:
        old_log_probs = padded.flat(batch.log_probs)
        if arm == "sis":
            # The one line.
            old_log_probs = torch.where(sis.torch.tensor(evaluation.accepted), log_probs.detach(), old_log_probs)
        ratios = (log_probs - old_log_probs).exp()
        objective = torch.minimum(ratios * advantages, ratios.clamp(1 - _CLIP, 1 + _CLIP) * advantages)
    if settings.drops_stale:
        objective = objective[torch.from_numpy(records.present)]
    optimizer.zero_grad()
    (-objective.mean()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), _GRADIENT_NORM)
    optimizer.step()
    return evaluation
