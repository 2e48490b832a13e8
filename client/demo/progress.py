"""Progress and exit status of the demonstrations."""

import argparse
import pathlib
import shutil
import signal
import sys
import time
from typing import Any, Callable, TextIO

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BAR = 10
# Seconds between two lines where nothing can be redrawn.
_QUIET_SECONDS = 10


class Progress:
    """One line that says how far it is: redrawn on a terminal, printed now and then elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._redraws = stream.isatty()
        self._printed = float("-inf")

    def show(self, name: str, fraction: float, text: str) -> None:
        """Shows that `fraction` of what is called `name` is done, and `text` about it."""
        full = round(_BAR * fraction)
        line = f"{name} [{'#' * full}{'.' * (_BAR - full)}] {fraction:4.0%}  {text}"
        if self._redraws:
            columns = shutil.get_terminal_size().columns
            self._stream.write("\r" + line[: columns - 1] + "\x1b[K")
        elif fraction == 1 or time.monotonic() - self._printed >= _QUIET_SECONDS:
            self._printed = time.monotonic()
            self._stream.write(line + "\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        self._stream.write(("\r\x1b[K" if self._redraws else "") + text + "\n")
        self._stream.flush()


def main(description: str, job: Callable[[argparse.Namespace, Progress], None], **required: str) -> int:
    """Calls the job with the program's arguments: output, seed and those of `required`, which are helps by name. Returns
    the exit status. Interrupted, or where the terminal is closed, all context managers are left, so that servers and
    processes end; a RuntimeError or a ValueError is said."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", required=True, type=pathlib.Path, help="folder of report.html")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    for name, told in required.items():
        parser.add_argument(f"--{name}", required=True, help=told)
    given = parser.parse_args()
    for ending in _ENDINGS:
        signal.signal(ending, _interrupt)
    progress = Progress(sys.stdout)
    try:
        job(given, progress)
    except KeyboardInterrupt:
        progress.say("Interrupted.")
        return 130
    except (RuntimeError, ValueError) as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        return 1
    return 0


def _interrupt(*_: Any) -> None:
    # Once: a shell may tell of it too.
    for ending in _ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt
