"""Two recordings side by side: what reports are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List

import numpy as np

from sis.diagnose.compared import Compared, common_positions
from sis.diagnose.diagnosis import Diagnosis, diagnose
from sis.diagnose.recorded import RecordedFile
from sis.diagnose.recordings import pair_files, shown


@dataclass(frozen=True, eq=False)
class Comparison:
    a_name: str
    b_name: str
    # With the decisions, of A as the behaviour policy and B as the current one.
    compared: Compared
    diagnosis: Diagnosis

    def positions(self) -> List[Dict[str, Any]]:
        """Returns what is known of each position. A token is what a file says that it stands for; "#ID" if neither says
        it. Absent numbers are NaN."""
        compared, decided = self.compared, self.compared.decisions
        texts = {**compared.pair.b.texts, **compared.pair.a.texts}
        columns = {
            "sequence": compared.sequences,
            "position": compared.positions,
            "token": np.array([shown(texts.get(token, f"#{token}")) for token in compared.a.sampled.tolist()], object),
            "a_sampled_log_prob": compared.a.sampled_log_probs,
            "b_sampled_log_prob": compared.b.sampled_log_probs,
            "total_variation": compared.total_variations,
            "decision": decided.names,
            "log_ratio": decided.log_ratios,
            "acceptance_probability": decided.acceptance_probabilities,
            "log_envelope": decided.log_envelopes,
            "residual_mass": decided.residual_masses,
        }
        return [dict(zip(columns, row)) for row in zip(*(column.tolist() for column in columns.values()))]

    def as_json(self) -> Dict[str, Any]:
        """Returns a, b, fault, undecided, verdict, checks, left_out, d, profile, decisions and positions. Absent
        numbers are NaN or None."""
        report = {"a": self.a_name, "b": self.b_name, **self.diagnosis.as_json()}
        return {**report, "decisions": self.compared.decisions.summary(), "positions": self.positions()}


def compare(a: RecordedFile, b: RecordedFile, *, top_k: int = 0) -> Comparison:
    """Compares two recordings of the same prompts, up to and including the first position of each sequence where the
    sampled tokens differ.

    Args:
        top_k: Decide with the k most probable tokens; 0: all that are listed, at most 254.

    Raises:
        ValueError: As in pair_files.
    """
    pair = pair_files(a, b)
    compared = Compared.of(pair, common_positions(pair), top_k)
    return Comparison(a.name, b.name, compared, diagnose(compared))
