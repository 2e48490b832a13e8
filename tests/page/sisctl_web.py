"""The page that `sisctl web` serves, as a process."""

import os
import subprocess

SISCTL = "client/python/sisctl"


class SisctlWeb:
    """`sisctl web` of a server, from when it serves until close()."""

    def __init__(self, address, *flags, **environment):
        self.process = subprocess.Popen(
            [SISCTL, "web", f"--server={address}", "--port=0", *flags],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        line = self.process.stdout.readline()
        # "The page is at http://127.0.0.1:1234/ until Ctrl+C".
        self.url = next((word for word in line.split() if word.startswith("http://")), None)
        if self.url is None:
            self.close()
            raise RuntimeError(f"sisctl web ended with {self.process.returncode}, and said: {line}")

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=30)
        self.process.stdout.close()
