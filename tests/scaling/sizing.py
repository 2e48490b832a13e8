"""A workload's needs of --cache_bytes and of the network, by the formulas of docs/scaling.md.
measured_sizes.py prints them next to the needs of a real server."""


LOG_PROB_BYTES = {"float32": 4, "fixed16": 2}
# Bytes of a block on the wire, further bytes of a block in memory, and bytes of a sequence in memory.
HEADER, BLOCK, SEQUENCE = 72, 150, 430


def id_bytes(vocabulary: int) -> int:
    return 2 if vocabulary <= 1 << 16 else 3


def recorded_bytes(slots: float, vocabulary: int, encoding: str = "fixed16") -> float:
    """Returns the bytes of a token in a block that uses `slots` slots per token."""
    width, of_fixed16 = id_bytes(vocabulary), encoding == "fixed16"
    return slots * (LOG_PROB_BYTES[encoding] + width) + width + 6 + of_fixed16


def cache_bytes(
    slots: float, vocabulary: int, tokens: float, blocks: float, sequences: float, encoding: str = "fixed16"
) -> float:
    """Returns the bytes of `tokens` tokens in `blocks` blocks of `sequences` sequences."""
    return recorded_bytes(slots, vocabulary, encoding) * tokens + (HEADER + BLOCK) * blocks + SEQUENCE * sequences


def fetched_ids_bytes(slots: float, vocabulary: int) -> float:
    """Returns the bytes of a token in a block without its log-probs."""
    width = id_bytes(vocabulary)
    return slots * width + width + 5


def evaluate_bytes(top_k: int, form: str) -> int:
    """A token's current values on the wire, to Evaluate: `form` is gathered or reduced. The answer
    is a bit."""
    return {"gathered": 4 * top_k + 5, "reduced": 12}[form]


def steps_held(max_staleness: int) -> int:
    """Steps of which everything is held: one arrives, the oldest is trained on, those between wait."""
    return max_staleness + 1
