"""A run of the study through a service: the engine's log-probs are recorded there, and it decides
about every token, whatever the arm makes of that."""

import dataclasses
import functools
from typing import List

import numpy as np

import sis
from client.study.miniature import Training

_LEASE_SECONDS = 60
_SAMPLING = sis.Sampling(log_probs="processed", temperature=1.0)
# What the service gives coefficients for, with its decisions. "grpo" clips plain ratios itself.
_RULES = {"grpo+sampled": sis.Grpo(), "soft_acceptance+sampled": sis.SoftAcceptance()}
# Of "grpo": what the service takes unless told otherwise.
_CLIP = 0.2


@dataclasses.dataclass(frozen=True)
class Learned:
    """What one rollout brought."""

    rollout: int
    # Mean over its responses: what the policy that generated them is worth.
    reward: float
    # Of every update of it, in order: the u-th is made by a policy that is u updates ahead of the
    # behaviour policy.
    updates: List[sis.Totals]
    # Of its last update, had only the k most probable tokens been used, for k = 1 .. K.
    by_top_k: List[sis.PrefixPoint]


def train(address, run_id, start, cell, seed, parameters, show=lambda learned: None):
    """Trains from these parameters, with settings of the study. Returns a Learned per rollout, and
    calls show(the last one) as they come; what it raises ends the training."""
    training = Training(start, cell, seed, parameters)
    sizes = training.sizes
    learned = []
    with sis.Client(address) as client:
        run = client.create_run(
            run_id, seed=seed, vocabulary_size=sizes.vocabulary, top_k=sizes.top_k,
            task=start.get("task", "addition"), algorithm=cell["arm"],
            model=f"miniature, engine {cell.get('engine', 'exact')}",
        )  # fmt: skip
        for rollout in range(sizes.rollouts):
            # Written where the service reads it, if it shares memory.
            made = training.generate(functools.partial(client.empty_top_k, run))
            sequences = _record(client, run, rollout, rollout * sizes.updates, made)
            records = client.fetch_top_k(run, sequences, lease_seconds=_LEASE_SECONDS)
            steps = range(rollout * sizes.updates, (rollout + 1) * sizes.updates)
            rule = _RULES.get(cell["arm"])
            evaluations = [_update(client, run, records, training, step, rule) for step in steps]
            client.release(run, sequences, [records.lease_id])
            updates = [evaluation.totals for evaluation in evaluations]
            by_top_k = list(evaluations[-1].prefix_curve)
            learned.append(Learned(rollout, made.reward, updates, by_top_k))
            show(learned[-1])
    return learned


def _record(client, run, rollout, policy_version, made):
    """What a worker does; returns the sequences, once all of it is stored."""
    sequences = [f"{rollout}.{response}" for response in range(len(made.lengths))]
    entries = []
    for response, length in enumerate(made.lengths.tolist()):
        columns = (made.sampled_ids, made.sampled_log_probs, made.ids, made.log_probs)
        record = [column[response, :length] for column in columns]
        entries.append(sis.Block(sequences[response], 0, policy_version, *record))
        entries.append(sis.Seal(sequences[response], length))
    client.append_many(run, entries, sampling=_SAMPLING, worker="worker-0")
    return sequences


def _update(client, run, records, training, step, rule):
    """One optimiser step; returns what the service said about it, a sis.Evaluation."""
    batch = training.gather(step % training.sizes.updates)
    chosen = records.select(batch.responses.tolist())
    evaluation = client.evaluate(
        run,
        chosen,
        draw=step,
        log_probs=batch.log_probs,
        sampled_log_probs=batch.sampled_log_probs,
        outputs=("accepted", "coefficients") if rule else ("accepted",),
        prefix_curve=range(1, training.sizes.top_k + 1),
        options=sis.EvaluateOptions(algorithm=rule, advantages=batch.advantages if rule else None),
    )
    coefficients = evaluation.coefficients
    if rule is None:
        ratios = np.exp(batch.sampled_log_probs - chosen.sampled_log_probs)
        coefficients = clipped(ratios, batch.advantages)
    training.update(coefficients)
    client.advance_version(run, step + 1)
    return evaluation


def clipped(ratios, advantages):
    """The coefficients of GRPO without SIS: a ratio that has moved too far the way its advantage
    pushes has no gradient."""
    outside = np.where(advantages > 0, ratios > 1 + _CLIP, (advantages < 0) & (ratios < 1 - _CLIP))
    return np.where(outside, np.float32(0), ratios)
