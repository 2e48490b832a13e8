"""The environments that tools/rl-environment installs, for the benchmarks that run in one."""

import os
import pathlib
import sys

_WORKSPACE = pathlib.Path(__file__).absolute().parents[2]
_STARTED = "SIS_BENCH_STARTED"


def start_again_in(name, **variables):
    """Replaces this process by one of the environment's Python, with `variables` added to its environment,
    unless it is that process already. `name`: rl or verl."""
    if _STARTED in os.environ:
        return
    python = pathlib.Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", ".")) / f"build/{name}/bin/python"
    if not python.exists():
        sys.exit(f"{sys.argv[0]}: first run tools/rl-environment {name}")
    # This project's own modules; the system's packages would come before those of the environment.
    modules = os.pathsep.join(path for path in sys.path if path.startswith(str(_WORKSPACE)))
    os.execve(
        python,
        [str(python), "-P", *sys.argv],
        {**os.environ, **variables, "PYTHONPATH": modules, _STARTED: "1"},
    )
