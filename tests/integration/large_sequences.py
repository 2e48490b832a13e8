"""Sequences of some 310 bytes a position, bit by bit the same whenever they are made."""

import numpy as np

import sis

POSITIONS = 2000
CONFIG = {"seed": 1, "vocabulary_size": 64, "top_k": 50, "log_prob_encoding": "float32"}


def recorded(number):
    """Returns ids and log-probs of one sequence's top K, int32 and float32 [POSITIONS, K]. The sampled token is the
    most probable one."""
    rng = np.random.default_rng(number)
    log_probs = -np.sort(rng.uniform(5, 6, (POSITIONS, CONFIG["top_k"])).astype(np.float32))
    return np.tile(np.arange(CONFIG["top_k"], dtype=np.int32), (POSITIONS, 1)), log_probs


def name(number):
    return f"sequence {number}"


def append(client, run, numbers, retry_timeout=20):
    """Appends and seals them. Returns when all are acked."""
    with client.append(run, sampling=sis.Sampling("raw"), retry_timeout=retry_timeout) as stream:
        for number in numbers:
            ids, log_probs = recorded(number)
            stream.block(
                name(number), first_position=0, policy_version=0, sampled_ids=ids[:, 0],
                sampled_log_probs=log_probs[:, 0], top_k_ids=ids, top_k_log_probs=log_probs,
            )  # fmt: skip
            stream.seal(name(number), length=POSITIONS)
