"""Why the log-probs of two engines, or of an engine and a trainer, differ.

from sis import diagnose

comparison = diagnose.compare(diagnose.read_file("rollout.jsonl"), diagnose.read_file("trainer.jsonl"))
print(*comparison.diagnosis.verdict, sep="\\n")
print(*diagnose.diagnose_run(client, "math-7b").tokens.verdict, sep="\\n")
"""

from sis.diagnose.check import Check
from sis.diagnose.comparison import Comparison, compare
from sis.diagnose.diagnosis import Diagnosis
from sis.diagnose.recorded import RecordedFile, read_file
from sis.diagnose.runs import RunDiagnosis, diagnose_run

__all__ = [
    "Check", "Comparison", "Diagnosis", "RecordedFile", "RunDiagnosis", "compare", "diagnose_run", "read_file",
]  # fmt: skip
