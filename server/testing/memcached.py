"""A memcached of a test's own."""

import os
import socket
import subprocess
import time


class Memcached:
    """A node that can be killed (it forgets all), or stopped (it does not answer, and forgets
    nothing)."""

    def __init__(self, path: str):
        self.path = path
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(["memcached", "-s", self.path, "-u", "root"])
        with socket.socket(socket.AF_UNIX) as probe:
            while probe.connect_ex(self.path) != 0:
                assert self._process.poll() is None, "memcached does not start"
                time.sleep(0.01)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if os.path.exists(self.path):
            os.unlink(self.path)
