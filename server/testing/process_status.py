"""Numbers of a process from the kernel."""

import pathlib


def process_status(process, name):
    """Returns a number of /proc/PID/status (VmRSS and VmHWM in KiB, Threads), or None if it is absent, as after the
    end of the process."""
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return None
