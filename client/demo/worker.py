"""The rollout worker: a process that samples from the behaviour policy and streams what it recorded
to the service."""

import dataclasses

import numpy as np

import sis
from client.study.miniature import Miniature


@dataclasses.dataclass(frozen=True)
class Order:
    """What the trainer sends to its worker. The answer is the list of sequence ids, once all of it
    is stored: response i of prompt j at place j * group + i."""

    rollout: int
    # Optimiser steps that made the weights, and the file they are in.
    policy_version: int
    weights: str
    # Of the problems, and of what is drawn.
    seed: int


def work(address, run_id, bits, settings, orders):
    """Runs until the trainer at the other end of `orders`, a Connection, closes it.

    bits: of the weights that it computes with; 0: the trainer's own.
    """
    miniature = Miniature(settings.digits)
    with sis.Client(address) as client:
        run = client.get_run(run_id).run
        sampling = sis.Sampling(log_probs="processed", temperature=1.0)
        with client.append(run, sampling=sampling, worker="worker-0") as stream:
            while True:
                try:
                    order = orders.recv()
                except EOFError:
                    return
                parameters = np.load(order.weights)
                responses, lengths, log_probs = miniature.generate(
                    parameters, bits, order.seed, settings.prompts, settings.group, order.seed
                )
                record = top_k_record(responses, log_probs, run.config.top_k)
                sequences = []
                for index, length in enumerate(lengths.tolist()):
                    sequence = "rollout-%d/prompt-%d/response-%d" % (order.rollout, *divmod(index, settings.group))
                    start = index * miniature.response_length
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

    responses: int [B, T]. log_probs: what they were drawn from, float32 [B, T, vocabulary].
    """
    values = log_probs.reshape(-1, log_probs.shape[-1])
    sampled = responses.reshape(-1)
    ids = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    return sis.canonical(ids, values, sampled, np.take_along_axis(values, sampled[:, None], 1)[:, 0], top_k)
