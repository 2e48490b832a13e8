"""Waits for a condition."""

import time


def until(ask, done=bool, seconds=60):
    """Calls `ask` until `done` accepts its result, and returns it. Raises AssertionError with the last result after
    `seconds`."""
    end = time.monotonic() + seconds
    while not done(answer := ask()):
        if time.monotonic() > end:
            raise AssertionError(f"it never came: {answer!r}")
        time.sleep(0.05)
    return answer
