"""The rollout worker: a process that samples from the behaviour policy and streams what it recorded to the service."""

import dataclasses

import torch

import sis
from client.demo import model as models
from client.demo import task as tasks

# Responses generated together; they travel to the service while the next ones are generated.
_BATCH = 128


@dataclasses.dataclass(frozen=True)
class Order:
    """What the trainer sends to its worker. The answer is the list of sequence ids, once all of it is stored."""

    rollout: int
    # Optimiser steps that made the weights, and the file they are in.
    policy_version: int
    weights: str
    # int64 [responses, prompt_length]: every problem stands there once for each response of its group.
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
                    for response, log_prob, length in zip(responses, log_probs, task.lengths(responses).tolist()):
                        place = divmod(len(sequences), settings.group)
                        sequence = "rollout-%d/prompt-%d/response-%d" % (order.rollout, *place)
                        append(stream, run, sequence, order.policy_version, response[:length], log_prob[:length])
                        sequences.append(sequence)
                stream.flush()
                orders.send(sequences)


def append(stream, run, sequence, policy_version, response, log_probs):
    """Streams one whole response: tokens int64 [T], and the log-probs they were drawn from, float32 [T, vocabulary]."""
    # A stable sort of ascending ids: of equally probable tokens the smaller id comes first.
    ordered, ids = torch.sort(log_probs, dim=-1, descending=True, stable=True)
    top_k = run.config.top_k
    stream.block(
        sequence,
        first_position=0,
        policy_version=policy_version,
        sampled_ids=response,
        sampled_log_probs=log_probs.gather(1, response[:, None])[:, 0],
        top_k_ids=ids[:, :top_k],
        top_k_log_probs=ordered[:, :top_k],
    )
    stream.seal(sequence, length=len(response))
