"""What this process and all that it started use."""

import psutil


def processor_seconds():
    return _total(lambda process: sum(process.cpu_times()[:2]))


def proportional_set_bytes():
    return _total(lambda process: process.memory_full_info().pss)


def _total(measure):
    own = psutil.Process()
    total = 0
    for process in (own, *own.children(recursive=True)):
        try:
            total += measure(process)
        except psutil.Error:
            pass  # it ended meanwhile
    return total
