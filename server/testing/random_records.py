"""Records of a random policy, as a worker would send them."""

import numpy as np

import sis


def random_record(seed: int, positions: int, vocabulary: int, top_k: int) -> sis.TopK:
    """Records of `positions` consecutive positions; the same at every call."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(positions, vocabulary))
    log_softmax = (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)
    sampled = rng.integers(vocabulary, size=positions)
    ids = np.broadcast_to(np.arange(vocabulary), logits.shape)
    sampled_log_probs = np.take_along_axis(log_softmax, sampled[:, None], axis=1)[:, 0]
    return sis.canonical(ids, log_softmax, sampled, sampled_log_probs, top_k)
