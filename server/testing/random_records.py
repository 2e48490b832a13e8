"""Records of a random policy, as a worker would send them."""

import numpy as np

import sis


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return (logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)).astype(np.float32)


def record_of(log_probs: np.ndarray, sampled: np.ndarray, top_k: int) -> sis.TopK:
    """Records of the tokens [T] that a policy with log-probs [T, vocabulary] has sampled."""
    ids = np.broadcast_to(np.arange(log_probs.shape[1]), log_probs.shape)
    return sis.canonical(ids, log_probs, sampled, np.take_along_axis(log_probs, sampled[:, None], axis=1)[:, 0], top_k)


def drawn(log_probs: np.ndarray, generator: np.random.Generator, top_k: int) -> sis.TopK:
    """Records of tokens that are drawn from a policy with log-probs [T, vocabulary]."""
    return record_of(log_probs, (log_probs + generator.gumbel(size=log_probs.shape)).argmax(axis=1), top_k)


def random_record(seed: int, positions: int, vocabulary: int, top_k: int) -> sis.TopK:
    """Records of `positions` consecutive positions; the same at every call."""
    rng = np.random.default_rng(seed)
    log_probs = log_softmax(rng.normal(size=(positions, vocabulary)))
    return record_of(log_probs, rng.integers(vocabulary, size=positions), top_k)
