"""Random batches with the edges that matter, in values that float32 holds."""

import numpy as np

from tests.reference.algorithms import Batch


def single(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float32).astype(np.float64)


def random_batch(seed: int, three_policies: bool = False) -> Batch:
    """Four sequences, one of them in two parts: about 350 positions."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(2**64, size=4, dtype=np.uint64).tolist()
    keys.insert(3, keys[0])
    counts = rng.integers(20, 120, size=5).tolist()
    count = sum(counts)
    current = single(-rng.exponential(2.0, count))
    reference = single(np.minimum(current - rng.normal(0, rng.choice([0.05, 0.5, 3]), count), 0))
    accepted = rng.random(count) < 0.5
    masked = rng.random(count) < 0.1
    current[rng.random(count) < 0.02] = -np.inf
    accepted &= current > -np.inf
    log_ratios = single(np.float32(current) - np.float32(reference))
    extreme = (rng.random(count) < 0.03) & (current > -np.inf)
    log_ratios[extreme] = single(rng.choice([-60.0, 60.0, 0.0], extreme.sum()))
    log_importance_ratios = log_ratios.copy()
    corrections = None
    if three_policies:
        unmodified = single(rng.normal(0, 1, count))
        log_importance_ratios = single(log_ratios + unmodified)
        corrections = np.where(accepted, 0, unmodified)
    else:
        log_ratios[accepted] = 0
    advantages = single(rng.normal(0, 2, count))
    advantages[rng.random(count) < 0.1] = 0
    first_positions = rng.integers(0, 5000, size=5).tolist()
    total_variations = single(rng.random(count) * 0.5)
    draw = int(rng.integers(2**63))
    log_importance_ratios[rng.random(count) < 0.03] = 0
    acceptance_probabilities = single(rng.random(count))
    never = ~accepted & (rng.random(count) < 0.1)  # outside the recorded set, or lost
    acceptance_probabilities[never] = 0
    return Batch(
        keys=keys,
        first_positions=first_positions,
        counts=counts,
        masked=masked,
        accepted=accepted & ~masked,
        log_ratios=log_ratios,
        log_corrections=corrections,
        current_log_probs=current,
        reference_log_probs=reference,
        total_variations=total_variations,
        log_importance_ratios=log_importance_ratios,
        acceptance_probabilities=acceptance_probabilities,
        advantages=advantages,
        draw=draw,
    )
