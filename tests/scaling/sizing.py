"""What a workload takes of --cache_bytes and of the network to append, by the formulas of
docs/scaling.md; measured_sizes.py prints them beside what a real server takes."""

import math

# Positions of a page, and of the pages that a sequence may hold unpacked.
PAGE = 64
UNPACKED_PAGES = 2
LOG_PROB_BITS = {"float32": 32, "float16": 16, "fixed12": 12}


def id_bits(vocabulary: int) -> int:
    return math.ceil(math.log2(vocabulary))


def recorded_bytes(top_k: int, vocabulary: int, encoding: str = "fixed12") -> float:
    """Of a token of a long sealed sequence in --cache_bytes."""
    ids = (top_k + 1) * id_bits(vocabulary) / 8
    log_probs = top_k * LOG_PROB_BITS[encoding] / 8 + (1.5 if encoding == "fixed12" else 0)
    sampled_log_prob, rank = 4, 1
    header, index = 32 / PAGE, 128 / PAGE
    return ids + log_probs + sampled_log_prob + rank + header + index


def cache_bytes(
    top_k: int, vocabulary: int, tokens: float, sequences: float, unsealed: float = 0, encoding: str = "fixed12"
) -> float:
    """Of `tokens` in `sequences`, of which `unsealed` are still being written, each with two pages
    that aren't packed."""
    open_tokens = unsealed * UNPACKED_PAGES * PAGE
    packed = recorded_bytes(top_k, vocabulary, encoding) * max(tokens - open_tokens, 0)
    return packed + open_tokens * (8 * top_k + 9) + sequences * (1024 + 64)


def append_bytes(top_k: int) -> int:
    """A token's arrays on the wire, from a worker."""
    return 8 * top_k + 8
