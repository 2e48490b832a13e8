"""The page that `sisctl web` serves, as a process, or in this one."""

import subprocess
import threading

import sis
from sis.web import app

SISCTL = "client/python/sisctl"


class SisctlWeb:
    """`sisctl web` of a server, from when it serves until close()."""

    def __init__(self, address, *flags):
        self.process = subprocess.Popen(
            [SISCTL, "web", f"--server={address}", "--port=0", *flags],
            stdout=subprocess.PIPE,
            text=True,
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


class PageInThisProcess:
    """The same, which takes no seconds to start."""

    def __init__(self, addresses):
        self._client = sis.Client(addresses if len(addresses) > 1 else addresses[0], timeout=7, reopen_runs=False)
        listener = app.listen(0)
        self.url = app.url(listener)
        self._serving = app.make_server(app.make_app(self._client, addresses))
        self._thread = threading.Thread(target=self._serving.run, kwargs={"sockets": [listener]})
        self._thread.start()

    def close(self):
        self._serving.should_exit = self._serving.force_exit = True
        self._thread.join()
        self._client.close()
