"""A command before which a program's waits with a limit last 25 times as long."""

import pathlib

_LIBRARY = pathlib.Path(__file__).absolute().parent / "liblate_timers.so"

LATE_TIMERS = ["env", f"LD_PRELOAD={_LIBRARY}"]


def has_late_timers(process) -> bool:
    """Whether it was started so; the loader only warns where a library can't be loaded."""
    return _LIBRARY.name in pathlib.Path(f"/proc/{process.pid}/maps").read_text()
