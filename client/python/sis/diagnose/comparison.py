"""Two recordings side by side: what reports are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List

from sis.diagnose.compared import Compared, common_positions
from sis.diagnose.decisions import MAX_TOP_K, Decisions, decide
from sis.diagnose.diagnosis import Diagnosis, diagnose
from sis.diagnose.recorded import RecordedFile
from sis.diagnose.recordings import Recording, pair_files, shown


@dataclass(frozen=True, eq=False)
class Comparison:
    a_name: str
    b_name: str
    compared: Compared
    # What was asked for; 0: all that is listed.
    top_k: int
    # A as the behaviour policy and B as the current one, and the other way round.
    a_to_b: Decisions
    b_to_a: Decisions
    diagnosis: Diagnosis

    def text_of(self, token: int) -> str:
        """Returns what a file says that a token stands for; "#ID" if neither says it."""
        pair = self.compared.pair
        return shown(pair.a.texts.get(token, pair.b.texts.get(token, f"#{token}")))

    def notes(self) -> List[str]:
        """Returns sentences about the K of the decisions, where it is not what was asked for, or not all that is listed
        because no record holds so many."""
        notes = []
        pair = self.compared.pair
        for name, behaviour, decisions in (("A", pair.a, self.a_to_b), ("B", pair.b, self.b_to_a)):
            notes += _note(name, behaviour, decisions.top_k, self.top_k)
        return notes

    def as_json(self) -> Dict[str, Any]:
        """Returns a, b, fault, undecided, verdict, checks, left_out, d, profile, a_to_b, b_to_a, notes and positions.
        Numbers that are not there are NaN or None."""
        compared, pair = self.compared, self.compared.pair
        variations = compared.total_variations.tolist()
        directions = {"a_to_b": _columns(self.a_to_b), "b_to_a": _columns(self.b_to_a)}
        positions = [
            {
                "sequence": int(compared.sequences[at]),
                "position": int(compared.positions[at]),
                "token": self.text_of(int(compared.a_sampled[at])),
                "a_sampled_log_prob": float(pair.a.sampled_log_probs[compared.at_a[at]]),
                "b_sampled_log_prob": float(pair.b.sampled_log_probs[compared.at_b[at]]),
                "total_variation": variations[at],
                **{
                    name: {field: values[at] for field, values in columns.items()}
                    for name, columns in directions.items()
                },
            }
            for at in range(len(compared))
        ]
        return {
            "a": self.a_name,
            "b": self.b_name,
            **self.diagnosis.as_json(),
            "a_to_b": self.a_to_b.summary(),
            "b_to_a": self.b_to_a.summary(),
            "notes": self.notes(),
            "positions": positions,
        }


def _columns(decisions: Decisions) -> Dict[str, List[Any]]:
    return {
        "decision": [decisions.name(at) for at in range(len(decisions.decisions))],
        "log_ratio": decisions.log_ratios.tolist(),
        "acceptance_probability": decisions.acceptance_probabilities.tolist(),
        "log_envelope": decisions.log_envelopes.tolist(),
        "residual_mass": decisions.residual_masses.tolist(),
    }


def _note(name: str, behaviour: Recording, used: int, asked: int) -> List[str]:
    if asked > used:
        why = "no record holds more" if behaviour.top_k > MAX_TOP_K else "it lists no more"
        return [f"K is {used}, not the {asked} asked for, where {name} is the behaviour policy: {why}."]
    if asked == 0 and behaviour.top_k > MAX_TOP_K:
        return [
            f"Of the {behaviour.top_k} tokens that {name} lists a record holds the {used} most probable; look-ups are "
            "among all."
        ]
    return []


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
    compared.decisions = decide(compared, True, top_k, seed)
    b_to_a = decide(compared, False, top_k, seed)
    return Comparison(a.name, b.name, compared, top_k, compared.decisions, b_to_a, diagnose(compared))
