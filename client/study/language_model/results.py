"""What came of the runs: a file with a line of JSON for each, in the order in which they finished."""

import json
import pathlib
from typing import Any, Dict, List

from client.study.language_model import schedule
from client.study.language_model.schedule import Run
from client.study.report.design import Design

# As training.py writes it, and which sources made it.
Result = Dict[str, Any]
Results = Dict[Run, Result]


def read(path: pathlib.Path) -> Results:
    """Empty if there is no file. ValueError if results of several sources, or of several versions of
    packages, are mixed: they are not one study."""
    results: Results = {}
    if not path.exists():
        return results
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            # Cut off while it was written.
            continue
        fields = json.loads(line)
        results[Run(*(fields.pop(name) for name in Run._fields))] = fields
    for name in ("sources", "versions"):
        different = {json.dumps(result[name]) for result in results.values()}
        if len(different) > 1:
            raise ValueError(f"{path}: runs of different {name}: {', '.join(sorted(different))}")
    return results


def write(path: pathlib.Path, results: Results) -> None:
    """All of them, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps({**run._asdict(), **result}) + "\n" for run, result in results.items()))
    part.rename(path)


def finished_seeds(design: Design, results: Results) -> List[int]:
    """Those that have all of their runs."""
    unfinished = {run.seed for run in schedule.missing(design, results)}
    return sorted({run.seed for run in schedule.runs(design)} - unfinished)
