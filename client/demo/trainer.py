"""The trainer: a process that improves the current policy by its arm's rule."""

import dataclasses
import os
import time
from typing import List

import numpy as np

import sis
from client.demo import worker
from client.study.miniature import Miniature

_LEASE_SECONDS = 60
# Of the arms that clip plain ratios: what the service takes for GRPO unless told otherwise.
_CLIP = 0.2


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
    # Of its last update, had only the k most probable tokens been used, for k = 1 .. K.
    by_top_k: List[sis.PrefixPoint]


def train(address, run_id, arm, settings, seed, checkpoint, folder, deadline, orders, progress):
    """Trains from `checkpoint` as the arms.Arm says; sends a Learned per rollout, and None at the
    end, to `progress`, a Connection.

    The service decides whatever the arm is, so that all arms measure the same. orders: the
    Connection to the worker. folder: for the weights on their way to it. deadline: on
    time.monotonic(); no rollout is begun after it.
    """
    with sis.Client(address) as client:
        trainer = Trainer(client, client.get_run(run_id).run, np.load(checkpoint), settings, seed, arm)
        for rollout in range(settings.rollouts):
            if time.monotonic() > deadline:
                break
            weights = os.path.join(folder, run_id + ".npy")
            progress.send(trainer.learn(rollout, weights, orders))
    progress.send(None)


class Trainer:
    def __init__(self, client, run, parameters, settings, seed, arm):
        self.client = client
        self.run = run
        self.miniature = Miniature(settings.digits)
        self.parameters = parameters
        self.settings = settings
        self.seed = seed
        self.arm = arm
        self.random = np.random.default_rng(seed)
        # Optimiser steps done: the policy version and the draw.
        self.step = 0

    def learn(self, rollout, weights, orders):
        """Has one rollout generated, and uses it for all of its updates."""
        settings = self.settings
        with open(weights + ".part", "wb") as file:
            np.save(file, self.parameters)
        os.replace(weights + ".part", weights)
        # Whatever the arm, the same problems and uniforms.
        seed = (self.seed << 32) + rollout
        orders.send(worker.Order(rollout, self.step, weights, seed))
        prompts = np.repeat(self.miniature.prompts(seed, settings.prompts), settings.group, axis=0)

        records = self.client.fetch_top_k(self.run, orders.recv(), lease_seconds=_LEASE_SECONDS)
        lengths = np.array([part.length for part in records.slices])
        generated = np.arange(self.miniature.response_length) < lengths[:, None]
        responses = np.full(generated.shape, self.miniature.STOP, np.int32)
        responses[generated] = records.sampled_ids
        rewards = self.miniature.rewards(seed, settings.prompts, responses)
        advantages = group_advantages(rewards, settings.group)
        # [N, response_length], by what generated the responses: the engine's, or the trainer's own
        # for the same weights.
        old_log_probs = np.zeros(generated.shape, np.float32)
        if self.arm.recomputes:
            log_probs = self.miniature.log_probs(self.parameters, prompts, responses)
            old_log_probs[:] = np.take_along_axis(log_probs, responses[:, :, None], axis=2)[:, :, 0]
        else:
            old_log_probs[generated] = records.sampled_log_probs

        updates = []
        for chosen in np.array_split(self.random.permutation(settings.responses), settings.updates):
            evaluation = self.update(
                records.select(chosen.tolist()), prompts[chosen], responses[chosen], generated[chosen],
                old_log_probs[chosen], advantages[chosen],
            )  # fmt: skip
            updates.append(evaluation.totals)

        self.client.release(self.run, [part.sequence for part in records.slices], [records.lease_id])
        return Learned(rollout, float(rewards.mean()), settings.responses, updates, list(evaluation.prefix_curve))

    def update(self, batch, prompts, responses, generated, old_log_probs, advantages):
        """One optimiser step; returns what the service said about it, a sis.Evaluation.

        Of n responses with N tokens together: batch has their records; responses, generated and
        old_log_probs are [n, response_length]; advantages are [n].
        """
        miniature, arm, settings = self.miniature, self.arm, self.settings
        log_probs = miniature.log_probs(self.parameters, prompts, responses)
        log_softmax = log_probs[generated]  # [N, vocabulary], one token after the other
        token_advantages = np.repeat(advantages, generated.sum(axis=1))
        gathered, sampled = sis.gather(batch, log_softmax)
        evaluation = self.client.evaluate(
            self.run,
            batch,
            draw=self.step,
            log_probs=gathered,
            sampled_log_probs=sampled,
            outputs=("accepted", "coefficients") if arm.rule else ("accepted",),
            prefix_curve=range(1, settings.top_k + 1),
            options=sis.EvaluateOptions(algorithm=arm.rule, advantages=token_advantages if arm.rule else None),
        )
        if arm.rule:
            coefficients = evaluation.coefficients
        else:
            ratios = np.exp(sampled - old_log_probs[generated])
            coefficients = clipped(ratios, token_advantages)

        # The loss is -mean(coefficient * advantage * log p), of which only log p has a gradient.
        weights = coefficients * token_advantages / len(batch)
        d_logits = np.zeros_like(log_probs)
        d_tokens = weights[:, None] * np.exp(log_softmax)
        d_tokens[np.arange(len(batch)), batch.sampled_ids] -= weights
        d_logits[generated] = d_tokens
        miniature.step(self.parameters, d_logits, settings.learning_rate)
        self.step += 1
        self.client.advance_version(self.run, self.step)
        return evaluation


def clipped(ratios, advantages):
    """The coefficients of GRPO without SIS: a ratio that has moved too far the way its advantage
    pushes has no gradient."""
    outside = np.where(advantages > 0, ratios > 1 + _CLIP, (advantages < 0) & (ratios < 1 - _CLIP))
    return np.where(outside, np.float32(0), ratios)


def group_advantages(rewards, group):
    """GRPO's advantages: each reward against the mean of its group, in its standard deviations.
    [responses]."""
    grouped = rewards.reshape(-1, group)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    return (centred / (grouped.std(axis=1, ddof=1, keepdims=True) + np.float32(1e-4))).ravel()
