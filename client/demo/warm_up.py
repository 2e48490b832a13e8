"""Supervised learning until the policy solves a part of the problems: where reinforcement learning
starts."""

import dataclasses
import time

import torch

from client.demo import model as models
from client.demo import task as tasks

# Steps over which the learning rate rises, and between measurements of the accuracy.
_RISE = 100
_MEASURE_EVERY = 25
_MEASURED_PROBLEMS = 512


@dataclasses.dataclass(frozen=True)
class WarmUp:
    steps: int
    seconds: float
    # Of `_MEASURED_PROBLEMS` samples at temperature 1.
    accuracy: float


def accuracy(model, task, generator):
    """The fraction of fresh problems that a sample at temperature 1 solves."""
    prompts, answers = task.problems(_MEASURED_PROBLEMS, generator)
    responses, _ = models.sample(model, prompts, task.response_length, generator)
    return task.rewards(responses, answers).mean().item()


def warm_up(model, task, settings, show):
    """Trains `model` in place and returns a WarmUp; calls show(WarmUp) at every measurement."""
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.warm_up_learning_rate)
    rise = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / _RISE))
    start = time.monotonic()
    step = 0
    while True:
        prompts, answers = task.problems(settings.warm_up_batch, generator)
        due = torch.arange(task.response_length) < task.lengths(answers)[:, None]
        log_probs = model.response_log_probs(prompts, answers)[due]
        right = log_probs.gather(1, answers[due][:, None]).mean()
        loss = -torch.lerp(right, log_probs.mean(), settings.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rise.step()
        step += 1
        seconds = time.monotonic() - start
        if step % _MEASURE_EVERY == 0 or seconds > settings.warm_up_seconds:
            state = WarmUp(step, seconds, accuracy(model, task, generator))
            show(state)
            if state.accuracy >= settings.warm_up_accuracy or seconds > settings.warm_up_seconds:
                return state
