"""Two recordings side by side: what reports are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict

import numpy as np

from sis.diagnose.compared import Compared, common_positions
from sis.diagnose.decisions import MAX_TOP_K, Decisions, decide
from sis.diagnose.diagnosis import Diagnosis, diagnose
from sis.diagnose.recorded import RecordedFile
from sis.diagnose.recordings import pair_files, shown


@dataclass(frozen=True, eq=False)
class Comparison:
    a_name: str
    b_name: str
    compared: Compared
    # K that the caller asked for; 0: all listed tokens.
    top_k: int
    # With A as the behaviour policy and B as the current one.
    decisions: Decisions
    diagnosis: Diagnosis

    def text_of(self, token: int) -> str:
        """Returns what a file says that a token stands for; "#ID" if neither says it."""
        pair = self.compared.pair
        return shown(pair.a.texts.get(token, pair.b.texts.get(token, f"#{token}")))

    def note(self) -> str:
        """Returns a sentence about the K of the decisions if it is neither what was asked for nor all that A lists;
        otherwise an empty string."""
        used, listed = self.decisions.top_k, self.compared.pair.a.top_k
        if self.top_k > used:
            why = "no record holds more" if listed > MAX_TOP_K else "A lists no more"
            return f"K is {used}, not the {self.top_k} asked for: {why}."
        if self.top_k == 0 and listed > MAX_TOP_K:
            return f"Of the {listed} tokens that A lists a record holds the {used} most probable."
        return ""

    def as_json(self) -> Dict[str, Any]:
        """Returns a, b, fault, undecided, verdict, checks, left_out, d, profile, decisions, note and positions. Absent
        numbers are NaN or None."""
        compared, pair, decided = self.compared, self.compared.pair, self.decisions
        columns = {
            "sequence": compared.sequences,
            "position": compared.positions,
            "token": np.array([self.text_of(token) for token in compared.a_sampled.tolist()], object),
            "a_sampled_log_prob": pair.a.sampled_log_probs[compared.at_a],
            "b_sampled_log_prob": pair.b.sampled_log_probs[compared.at_b],
            "total_variation": compared.total_variations,
            "decision": np.array([decided.name(at) for at in range(len(compared))], object),
            "log_ratio": decided.log_ratios,
            "acceptance_probability": decided.acceptance_probabilities,
            "log_envelope": decided.log_envelopes,
            "residual_mass": decided.residual_masses,
        }
        positions = [dict(zip(columns, row)) for row in zip(*(column.tolist() for column in columns.values()))]
        return {
            "a": self.a_name,
            "b": self.b_name,
            **self.diagnosis.as_json(),
            "decisions": decided.summary(),
            "note": self.note(),
            "positions": positions,
        }


def compare(a: RecordedFile, b: RecordedFile, *, top_k: int = 0, seed: int = 0) -> Comparison:
    """Compares two recordings of the same prompts, up to and including the first position of each sequence where the
    sampled tokens differ.

    Args:
        top_k: Decide with the k most probable tokens; 0: all that are listed, at most 254.
        seed: Keys the accept/reject draws.

    Raises:
        ValueError: As in pair_files.
    """
    pair = pair_files(a, b)
    compared = Compared(pair, common_positions(pair))
    compared.decisions = decide(compared, top_k, seed)
    return Comparison(a.name, b.name, compared, top_k, compared.decisions, diagnose(compared))
