"""The service's decisions, with one recording as the behaviour policy and the other as the current one.

They follow docs/numerics.md, except for exponentials, which are numpy's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, Optional, Union

import numpy as np

from sis import _ragged
from sis._evaluation import Decision
from sis.diagnose.lists import Lists

if TYPE_CHECKING:
    from sis.diagnose.compared import Compared

# Slots that a record holds at most.
MAX_TOP_K = 254
_HIGHEST_LOG_PROB = 2.0**-6
_MAX_MASS = 1 + 2.0**-6
_FLUSH_BELOW = 2.0**-100
# Maximum that a position adds to a sum, in nats.
_LARGEST = 64.0


# For people and programs.
NAMES = {Decision.ACCEPTED: "accepted", Decision.REJECTED: "rejected", Decision.OUTSIDE_TOP_K: "outside"}
UNSCORED = "unscored"


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

    def name(self, position: int) -> str:
        return NAMES.get(Decision(self.decisions[position]), UNSCORED)

    def summary(self) -> Dict[str, Optional[Union[int, float]]]:
        """Returns counts and means over the scored positions; None for a mean over nothing."""
        scored = self.scored
        count = int(scored.sum())
        made: Dict[str, Optional[Union[int, float]]] = {
            "top_k": self.top_k,
            "positions": len(scored),
            "unscored": len(scored) - count,
        }
        for decision, name in ((1, "accepted"), (2, "rejected"), (3, "outside_top_k")):
            made[name] = int((self.decisions == decision).sum())
        log_ratios = self.log_ratios[scored].astype(np.float64)
        size = np.abs(log_ratios)
        accepted = self.decisions[scored] == Decision.ACCEPTED
        with np.errstate(over="ignore"):
            excess = np.expm1(log_ratios) - log_ratios
        for name, values in (
            ("accept_rate", accepted.astype(np.float64)),
            ("mean_acceptance_probability", self.acceptance_probabilities[scored]),
            ("mean_d", size),
            ("mean_d_sis", np.where(accepted, 0.0, size)),
            ("mean_k3", excess),
            ("mean_log_envelope", self.log_envelopes[scored]),
            ("mean_residual_mass", self.residual_masses[scored]),
        ):
            limited = np.clip(values.astype(np.float64), -_LARGEST, _LARGEST)
            made[name] = float(limited.mean()) if count else None
        return made


def decide(compared: Compared, top_k: int = 0, seed: int = 0) -> Decisions:
    """Decides about all compared positions, with A as the behaviour policy and B as the current one.

    A member of V_K that B does not list counts in the envelope with the smallest log-prob that B lists at that position
    (0 if none), and adds nothing to the covered mass.

    Args:
        top_k: Use only the k most probable tokens; 0: all that A lists, at most as many as a record holds.
        seed: Of the run: keys the draws. The sequences are called "0", "1", ...
    """
    size = len(compared)
    behaviour, here, record = compared.side("a")
    current, there, listed = compared.side("b")
    recorded = min(max(behaviour.top_k, 1), MAX_TOP_K)
    used = recorded if top_k == 0 else min(top_k, recorded)
    sampled, own = behaviour.sampled[here], behaviour.sampled_log_probs[here].astype(np.float64)
    others = current.sampled[there], current.sampled_log_probs[there].astype(np.float64)
    log_prob = log_probs_of(listed, listed.find(np.arange(size), sampled), np.arange(size), sampled, *others)

    within = record.ranks() < used
    rows, ids, log_q = record.rows[within], record.ids[within], record.log_probs[within]
    log_p = log_probs_of(listed, compared.a_in_b[within], rows, ids, *others)
    bound = np.where(np.isnan(log_p), listed.last(0.0)[rows], log_p)
    envelopes = np.full(size, -np.inf, np.float32)
    if len(rows):
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        envelopes[rows[first]] = np.maximum.reduceat(bound.astype(np.float32) - log_q, first)
    envelopes = _flushed(envelopes)
    probs = np.where(np.isnan(log_p), 0.0, np.exp(log_p))
    masses = np.bincount(rows, probs, minlength=size)
    valid = np.ones(size, bool)
    valid[rows[log_p > _HIGHEST_LOG_PROB]] = False

    scored = np.isfinite(own) & (log_prob <= _HIGHEST_LOG_PROB) & valid & (masses <= _MAX_MASS)
    own, log_prob = np.where(scored, own, np.nan), np.where(scored, log_prob, np.nan)
    log_ratios = _flushed(log_prob.astype(np.float32) - own.astype(np.float32))
    in_record = np.zeros(size, bool)
    in_record[rows[ids == sampled[rows]]] = True
    with np.errstate(invalid="ignore"):
        probabilities = np.where(in_record, np.exp(np.minimum(0.0, log_ratios - envelopes)), 0.0)
    accepted = _uniforms(compared.counts, seed) < np.trunc(np.nan_to_num(probabilities) * 2.0**32)
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


def log_probs_of(
    lists: Lists,
    found: np.ndarray,
    rows: np.ndarray,
    ids: np.ndarray,
    sampled: np.ndarray,
    sampled_log_probs: np.ndarray,
) -> np.ndarray:
    """Returns the log-probs of `ids` at `rows`, as listed or as sampled tokens; NaN where the engine gave none.

    Args:
        found: What lists.find(rows, ids) returns.
    """
    own = np.where((sampled[rows] == ids) & np.isfinite(sampled_log_probs)[rows], sampled_log_probs[rows], np.nan)
    return np.where(found >= 0, lists.log_probs_at(found), own)


def _flushed(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) < _FLUSH_BELOW, np.float32(0), values)


def _uniforms(counts: np.ndarray, seed: int) -> np.ndarray:
    """Returns 32-bit words, uint64 [C], of draw 0 (docs/numerics.md, section 6)."""
    keys = np.asarray([_sequence_key(seed, str(i)) for i in range(len(counts))], np.uint64).repeat(counts)
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


def _sequence_key(seed: int, sequence: str) -> int:
    key = 0xCBF29CE484222325
    for byte in (seed % (1 << 64)).to_bytes(8, "little") + bytes(4) + sequence.encode():
        key = (key ^ byte) * 0x100000001B3 % (1 << 64)
    return key
