"""Processor time of processes."""

import time


def processor_seconds(process_id):
    """Returns a process's processor time, to the nanosecond, from the clock of clock_getcpuclockid(3)."""
    return time.clock_gettime(~process_id << 3 | 2)
