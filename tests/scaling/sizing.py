"""What a workload takes of --cache_bytes and of the network, by the formulas of docs/scaling.md;
measured_sizes.py prints them beside what a real server takes."""

import math

# Positions of a page, and how many pages a sequence may hold unpacked.
PAGE = 64
MOST_UNPACKED_PAGES = 2
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
    top_k: int,
    vocabulary: int,
    tokens: float,
    sequences: float,
    unsealed: float = 0,
    encoding: str = "fixed12",
    unpacked_pages: float = MOST_UNPACKED_PAGES,
) -> float:
    """Of `tokens` in `sequences`, of which `unsealed` are still being written, each with so many pages
    that aren't packed."""
    open_tokens = unsealed * unpacked_pages * PAGE
    packed = recorded_bytes(top_k, vocabulary, encoding) * max(tokens - open_tokens, 0)
    return packed + open_tokens * (8 * top_k + 10) + sequences * (480 + 64)


def append_bytes(top_k: int) -> int:
    """A token's arrays on the wire, from a worker."""
    return 8 * top_k + 8


def fetch_bytes(top_k: int, ids_only: bool = False) -> int:
    """A token's arrays on the wire, from FetchTopK."""
    return 4 * top_k + 4 if ids_only else 8 * top_k + 8


def evaluate_bytes(top_k: int, form: str) -> int:
    """A token's current values on the wire, to Evaluate: `form` is gathered or reduced. The answer
    is a bit."""
    return {"gathered": 4 * top_k + 4, "reduced": 12}[form]


def steps_held(max_staleness: int) -> int:
    """Steps of which everything is held: one arrives, the oldest is trained on, those between wait."""
    return max_staleness + 1
