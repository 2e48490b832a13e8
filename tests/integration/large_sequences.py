"""Sequences of some 310 bytes a position, bit by bit the same whenever they are made."""

import sis
from server.testing.random_records import random_record

POSITIONS = 2000
CONFIG = {"seed": 1, "vocabulary_size": 64, "top_k": 50, "log_prob_encoding": "float32"}


def recorded(number):
    return random_record(number, POSITIONS, CONFIG["vocabulary_size"], CONFIG["top_k"])


def name(number):
    return f"sequence {number}"


def append(client, run, numbers, retry_timeout=20):
    """Appends and seals them. Returns when all are acked."""
    with client.append(run, sampling=sis.Sampling("raw"), retry_timeout=retry_timeout) as stream:
        for number in numbers:
            stream.block(name(number), first_position=0, policy_version=0, **recorded(number)._asdict())
            stream.seal(name(number), length=POSITIONS)
