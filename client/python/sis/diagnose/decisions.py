"""The service's decisions, with one recording as the behaviour policy and the other as the current one.

They follow docs/numerics.md, except for exponentials, which are numpy's.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Dict, Optional, Union

import numpy as np

from sis import _ragged
from sis._evaluation import Decision
from sis._servers.placement import fnv
from sis.diagnose.recorded import HIGHEST_LOG_PROB
from sis.diagnose.recordings import MAX_MASS, Recording

# Slots that a record holds at most.
_MAX_TOP_K = 254
_FLUSH_BELOW = 2.0**-100
# Maximum that a position adds to a sum, in nats.
LARGEST = 64.0

# For people and programs, by Decision.
_NAMES = np.array(["unscored", "accepted", "rejected", "outside", "unscored"], object)


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decisions about C compared positions. Numbers of a position without a ratio are NaN."""

    # The K that was used.
    top_k: int
    # uint8 [C], of Decision. MISSING if a file gives no log-prob of the token that the behaviour policy sampled.
    decisions: np.ndarray
    # float32 [C].
    log_ratios: np.ndarray
    acceptance_probabilities: np.ndarray
    log_envelopes: np.ndarray
    residual_masses: np.ndarray
    # int64 [C]. Policy versions behind, of a run's tokens; negative: ahead.
    staleness: np.ndarray

    @property
    def scored(self) -> np.ndarray:
        return self.decisions < Decision.MISSING

    @property
    def names(self) -> np.ndarray:
        return _NAMES[self.decisions]

    def take(self, rows: np.ndarray) -> Decisions:
        """Returns the decisions about these positions."""
        arrays = {name: value[rows] for name, value in vars(self).items() if name != "top_k"}
        return dataclasses.replace(self, **arrays)

    def summary(self) -> Dict[str, Optional[Union[int, float]]]:
        """Returns counts and means over the scored positions; None for a mean over nothing."""
        scored = self.scored
        decisions, log_ratios = self.decisions[scored], self.log_ratios[scored].astype(np.float64)
        accepted, size = decisions == Decision.ACCEPTED, np.abs(log_ratios)
        with np.errstate(over="ignore"):
            excess = np.expm1(log_ratios) - log_ratios
        made: Dict[str, Optional[Union[int, float]]] = {
            "top_k": self.top_k,
            "positions": len(scored),
            "unscored": len(scored) - len(size),
            "accepted": int(accepted.sum()),
            "rejected": int((decisions == Decision.REJECTED).sum()),
            "outside_top_k": int((decisions == Decision.OUTSIDE_TOP_K).sum()),
        }
        for name, values in (
            ("accept_rate", accepted),
            ("mean_acceptance_probability", self.acceptance_probabilities[scored]),
            ("mean_d", size),
            ("mean_d_sis", np.where(accepted, 0.0, size)),
            ("mean_k3", excess),
            ("mean_log_envelope", self.log_envelopes[scored]),
            ("mean_residual_mass", self.residual_masses[scored]),
        ):
            made[name] = float(np.clip(values.astype(np.float64), -LARGEST, LARGEST).mean()) if len(size) else None
        return made


def decide(behaviour: Recording, current: Recording, top_k: int = 0) -> Decisions:
    """Decides about all positions of two recordings that are in the same context.

    A member of V_K that the current policy does not list counts in the envelope with the smallest log-prob that is
    listed there (0 if none), and adds nothing to the covered mass. The draws are those of a run of seed 0, whose
    sequences are called "0", "1", ...

    Args:
        top_k: Use only the k most probable tokens; 0: all that are listed, at most as many as a record holds.
    """
    record, size = behaviour.lists, len(behaviour.sampled)
    recorded = min(max(behaviour.top_k, 1), _MAX_TOP_K)
    used = recorded if top_k == 0 else min(top_k, recorded)
    own, log_prob = behaviour.sampled_log_probs, current.log_probs_of(np.arange(size), behaviour.sampled)

    within = record.ranks() < used
    rows, ids, log_q = record.rows[within], record.ids[within], record.log_probs[within]
    log_p = current.log_probs_of(rows, ids)
    bound = np.where(np.isnan(log_p), current.lists.last(current.lists.log_probs, 0.0)[rows], log_p)
    envelopes = np.full(size, -np.inf, np.float32)
    np.maximum.at(envelopes, rows, bound.astype(np.float32) - log_q)
    envelopes = _flushed(envelopes)
    masses = np.bincount(rows, np.where(np.isnan(log_p), 0.0, np.exp(log_p)), minlength=size)
    valid = np.bincount(rows, log_p > HIGHEST_LOG_PROB, minlength=size) == 0

    scored = np.isfinite(own) & (log_prob <= HIGHEST_LOG_PROB) & valid & (masses <= MAX_MASS)
    log_ratios = _flushed(np.where(scored, log_prob, np.nan).astype(np.float32) - np.where(scored, own, np.float32(0)))
    in_record = np.bincount(rows, ids == behaviour.sampled[rows], minlength=size) > 0
    with np.errstate(invalid="ignore"):
        probabilities = np.where(in_record, np.exp(np.minimum(0.0, log_ratios - envelopes)), 0.0)
    accepted = _uniforms(behaviour.lengths) < np.trunc(np.nan_to_num(probabilities) * 2.0**32)
    decisions = np.where(
        ~scored, Decision.MISSING,
        np.where(~in_record, Decision.OUTSIDE_TOP_K, np.where(accepted, Decision.ACCEPTED, Decision.REJECTED)),
    )  # fmt: skip

    def float32(values: np.ndarray) -> np.ndarray:
        return np.where(scored, values, np.nan).astype(np.float32)

    return Decisions(
        used, decisions.astype(np.uint8), float32(log_ratios), float32(probabilities), float32(envelopes),
        float32(np.maximum(0.0, 1 - masses)), np.zeros(size, np.int64),
    )  # fmt: skip


def _flushed(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) < _FLUSH_BELOW, np.float32(0), values)


def _uniforms(counts: np.ndarray) -> np.ndarray:
    """Returns 32-bit words, uint64 [C], of draw 0 (docs/numerics.md, section 6)."""
    # The hash of seed 0 and attempt 0, 12 bytes, and the sequence's name.
    keys = np.asarray([fnv(bytes(12) + str(i).encode()) for i in range(len(counts))], np.uint64).repeat(counts)
    positions = _ragged.places(np.zeros(len(counts), np.int64), counts).astype(np.uint64)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    key0, key1 = keys & low, keys >> shift
    c0, c1, c2, c3 = positions >> np.uint64(2), np.zeros_like(keys), np.zeros_like(keys), np.ones_like(keys)
    for _ in range(10):
        first, third = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (third >> shift) ^ c1 ^ key0, third & low, (first >> shift) ^ c3 ^ key1, first & low
        key0, key1 = (key0 + np.uint64(0x9E3779B9)) & low, (key1 + np.uint64(0xBB67AE85)) & low
    words = np.stack([c0, c1, c2, c3])
    return words[(positions & np.uint64(3)).astype(np.int64), np.arange(len(positions))]
