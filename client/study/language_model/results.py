"""What came of the runs: a file with a line of JSON for each."""

import hashlib
import json
import pathlib
from typing import Any, Dict

from client.study.runs.design import Run
from client.study.runs.results import complete_lines, write_lines

_WORKSPACE = pathlib.Path(__file__).parents[3]
# What a run's numbers depend on, beside the packages.
_FOLDERS = {
    "client/study/language_model": (
        "arms.py", "engine.py", "evaluation.py", "int4.py", "settings.py", "stale.py", "task.py",
        "training.py", "weights.py",
    ),
    "client/python/sis/trl": ("capture.py", "config.py", "rollouts.py", "trainer.py"),
}  # fmt: skip

# As training.py writes it, which sources made it, and how many seconds that took.
Result = Dict[str, Any]
Results = Dict[Run, Result]


def read(path: pathlib.Path) -> Results:
    """Empty if there is no file. ValueError if results of several sources, or of several versions
    of packages, or of several devices, are mixed: they are not one study."""
    results: Results = {}
    for line in complete_lines(path):
        fields = json.loads(line)
        results[Run(*(fields.pop(name) for name in Run._fields))] = fields
    for name in ("sources", "versions", "device"):
        different = {json.dumps(result.get(name)) for result in results.values()}
        if len(different) > 1:
            raise ValueError(f"{path}: runs of different {name}: {', '.join(sorted(different))}")
    return results


def write(path: pathlib.Path, results: Results) -> None:
    lines = [json.dumps({**run._asdict(), **result}) for run, result in results.items()]
    write_lines(path, lines)


def sources(design: pathlib.Path) -> str:
    """A digest of what made a result of this design: results of other sources are not of the same study."""
    digest = hashlib.sha256(design.read_bytes())
    for folder, names in _FOLDERS.items():
        for name in names:
            digest.update((_WORKSPACE / folder / name).read_bytes())
    return digest.hexdigest()[:16]
