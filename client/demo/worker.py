"""The rollout worker: a process that samples from the behaviour policy and streams what it recorded
to the service."""

import dataclasses

import torch

import sis
from client.demo import model as models
from client.demo import task as tasks

# Responses generated together; they travel to the service while the next ones are generated.
_BATCH = 128


@dataclasses.dataclass(frozen=True)
class Order:
    """What the trainer sends to its worker. The answer is the list of sequence ids, once all of it
    is stored."""

    rollout: int
    # Optimiser steps that made the weights, and the file they are in.
    policy_version: int
    weights: str
    # int64 [responses, prompt_length]: every problem stands there once for each response of its
    # group.
    prompts: torch.Tensor


def work(address, run_id, settings, seed, orders):
    """Runs until the trainer at the other end of `orders`, a Connection, closes it."""
    task = tasks.Addition(settings.digits)
    model = models.of_task(task)
    generator = torch.Generator().manual_seed(seed)
    with sis.Client(address) as client:
        run = client.get_run(run_id).run
        sampling = sis.Sampling(log_probs="processed", temperature=1.0)
        with client.append(run, sampling=sampling, worker="worker-0") as stream:
            while True:
                try:
                    order = orders.recv()
                except EOFError:
                    return
                model.load_state_dict(torch.load(order.weights))
                sequences = []
                for prompts in order.prompts.split(_BATCH):
                    responses, log_probs = models.sample(model, prompts, task.response_length, generator)
                    record = top_k_record(responses, log_probs, run.config.top_k)
                    for index, length in enumerate(task.lengths(responses).tolist()):
                        place = divmod(len(sequences), settings.group)
                        sequence = "rollout-%d/prompt-%d/response-%d" % (order.rollout, *place)
                        start = index * task.response_length
                        rows = [column[start : start + length] for column in record]
                        stream.block(
                            sequence,
                            first_position=0,
                            policy_version=order.policy_version,
                            **sis.TopK(*rows)._asdict(),
                        )
                        stream.seal(sequence, length=length)
                        sequences.append(sequence)
                stream.flush()
                orders.send(sequences)


def top_k_record(responses, log_probs, top_k):
    """The sis.TopK of all positions of all responses, one response after the other.

    responses: int64 [B, T]. log_probs: what they were drawn from, float32 [B, T, vocabulary].
    """
    values = log_probs.flatten(0, 1)
    sampled = responses.flatten()
    ids = torch.arange(values.shape[1]).expand_as(values)
    return sis.canonical(ids, values, sampled, values.gather(1, sampled[:, None])[:, 0], top_k)
