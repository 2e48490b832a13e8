"""What the kernel knows of a process."""

import pathlib


def process_status(process, name):
    """A number of /proc/PID/status: VmRSS and VmHWM in KiB, Threads. None if it isn't there, as of a
    process that has ended."""
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return None
