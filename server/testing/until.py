"""Waiting for what takes as long as it takes."""

import time


def until(ask, done=bool, seconds=60):
    """What `ask()` answers, asked again and again until `done` says that this is it. After so many
    seconds an AssertionError with the last answer."""
    end = time.monotonic() + seconds
    while not done(answer := ask()):
        if time.monotonic() > end:
            raise AssertionError(f"it never came: {answer!r}")
        time.sleep(0.05)
    return answer
