"""The trainer: a process that improves the current policy by GRPO, with the decisions of the
service or without."""

import dataclasses
import os
import time
from typing import List

import torch

import sis
from client.demo import model as models
from client.demo import task as tasks
from client.demo import worker

_LEASE_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Learned:
    """What one rollout brought."""

    rollout: int
    # Mean over its responses: what the policy that generated them is worth.
    reward: float
    responses: int
    # Of every update of it, in order: the u-th is made by a policy that is u updates ahead of the
    # behaviour policy.
    updates: List[sis.Totals]
    # Of its last update, by k = 1 .. K.
    by_top_k: List[sis.Totals]


def train(address, run_id, use_sis, settings, seed, checkpoint, folder, deadline, orders, progress):
    """Trains from `checkpoint`; sends a Learned per rollout, and None at the end, to `progress`, a
    Connection.

    use_sis: whether accepted tokens count as the current policy's own. The service decides in
    either case, so that both arms do, and measure, the same. orders: the Connection to the worker.
    folder: for the weights on their way to it. deadline: on time.monotonic(); no rollout is begun
    after it.
    """
    task = tasks.Addition(settings.digits)
    model = models.of_task(task)
    model.load_state_dict(torch.load(checkpoint))
    with sis.Client(address) as client:
        trainer = Trainer(client, client.get_run(run_id).run, model, task, settings, seed, use_sis)
        for rollout in range(settings.rollouts):
            if time.monotonic() > deadline:
                break
            weights = os.path.join(folder, run_id + ".weights")
            progress.send(trainer.learn(rollout, weights, orders))
    progress.send(None)


class Trainer:
    def __init__(self, client, run, model, task, settings, seed, use_sis):
        self.client = client
        self.run = run
        self.model = model
        self.task = task
        self.settings = settings
        self.use_sis = use_sis
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.99))
        # Optimiser steps done: the policy version and the draw.
        self.step = 0

    def learn(self, rollout, weights, orders):
        """Has one rollout generated, and uses it for all of its updates."""
        settings = self.settings
        prompts, answers = self.task.problems(settings.prompts, self.generator)
        prompts = prompts.repeat_interleave(settings.group, dim=0)
        answers = answers.repeat_interleave(settings.group, dim=0)
        torch.save(self.model.state_dict(), weights + ".part")
        os.replace(weights + ".part", weights)
        orders.send(worker.Order(rollout, self.step, weights, prompts))

        records = self.client.fetch_top_k(self.run, orders.recv(), lease_seconds=_LEASE_SECONDS)
        lengths = torch.tensor([part.length for part in records.slices])
        generated = torch.arange(self.task.response_length) < lengths[:, None]
        responses = torch.full(generated.shape, tasks.STOP)
        responses[generated] = torch.from_numpy(records.sampled_ids).long()
        rewards = self.task.rewards(responses, answers)
        advantages = group_advantages(rewards, settings.group)

        updates = []
        order = torch.randperm(settings.responses, generator=self.generator)
        for chosen in order.chunk(settings.updates):
            batch = records.select(chosen.tolist())
            # Of the tokens in `batch`, one after the other: [N, vocabulary] and [N].
            log_softmax = self.model.response_log_probs(prompts[chosen], responses[chosen])[generated[chosen]]
            token_advantages = advantages[chosen].repeat_interleave(lengths[chosen])
            updates.append(self.update(batch, log_softmax, token_advantages))
        by_top_k = self.sweep_top_k(batch, log_softmax)

        self.client.release(self.run, [part.sequence for part in records.slices], [records.lease_id])
        return Learned(rollout, rewards.mean().item(), settings.responses, updates, by_top_k)

    def update(self, batch, log_softmax, advantages):
        """One optimiser step; returns the totals that the service counted for it.

        Over the N tokens of `batch`: log_softmax float32 [N, vocabulary] with gradients, advantages
        float32 [N].
        """
        gathered, sampled = sis.gather(batch, log_softmax)
        evaluation = self.client.evaluate(
            self.run, batch, draw=self.step, log_probs=gathered, sampled_log_probs=sampled
        )
        ids = torch.from_numpy(batch.sampled_ids).long()
        logp = log_softmax.gather(1, ids[:, None])[:, 0]
        old_logp = torch.from_numpy(batch.sampled_log_probs)
        if self.use_sis:
            old_logp = torch.where(torch.from_numpy(evaluation.accepted), logp.detach(), old_logp)

        ratio = (logp - old_logp).exp()
        clipped = ratio.clamp(1 - self.settings.clip, 1 + self.settings.clip)
        loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        self.client.advance_version(self.run, self.step)
        return evaluation.totals

    def sweep_top_k(self, batch, log_softmax):
        """The totals of the step just done, had only the k most probable tokens been used, for k =
        1 .. K.

        The same draw again: the same uniforms, and the service counts no position of a draw twice.
        """
        gathered, sampled = sis.gather(batch, log_softmax)
        return [
            self.client.evaluate(
                self.run, batch, draw=self.step - 1, log_probs=gathered, sampled_log_probs=sampled, top_k=top_k
            ).totals
            for top_k in range(1, self.settings.top_k + 1)
        ]


def group_advantages(rewards, group):
    """GRPO's advantages: each reward against the mean of its group, in its standard deviations.
    [responses]."""
    grouped = rewards.view(-1, group)
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    return (centred / (grouped.std(dim=1, keepdim=True) + 1e-4)).view(-1)
