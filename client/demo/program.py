"""What the demonstrations do as programs, whatever they train."""

import signal
import sys

from client.demo.progress import Progress


def run(main_job):
    """Calls main_job(Progress) and returns the exit status. Also where the terminal is closed, all
    context managers are left, so that servers and processes end; a RuntimeError is said."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    progress = Progress(sys.stdout)
    try:
        main_job(progress)
    except KeyboardInterrupt:
        progress.say("Interrupted.")
        return 130
    except RuntimeError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def aligned(rows):
    """Lines of rows of text, in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
