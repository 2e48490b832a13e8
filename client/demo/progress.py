"""One line that says how far it is: redrawn on a terminal, printed now and then elsewhere."""

import shutil
import time

_BAR = 10
# Seconds between two lines where nothing can be redrawn.
_QUIET_SECONDS = 10


class Progress:
    def __init__(self, stream):
        self._stream = stream
        self._redraws = stream.isatty()
        self._printed = float("-inf")

    def show(self, name, fraction, text):
        """Shows that `fraction` of what is called `name` is done, and `text` about it."""
        fraction = min(fraction, 1)
        full = round(_BAR * fraction)
        line = f"{name} [{'#' * full}{'.' * (_BAR - full)}] {fraction:4.0%}  {text}"
        if self._redraws:
            columns = shutil.get_terminal_size().columns
            self._stream.write("\r" + line[: columns - 1] + "\x1b[K")
        elif time.monotonic() - self._printed >= _QUIET_SECONDS:
            self._printed = time.monotonic()
            self._stream.write(line + "\n")
        self._stream.flush()

    def say(self, text):
        """Prints a line that stays."""
        self._stream.write(("\r\x1b[K" if self._redraws else "") + text + "\n")
        self._stream.flush()
