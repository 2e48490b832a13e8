"""The least that gRPC does for messages of some size: `echo_server.cc`, and a client in Python."""

import pathlib
import queue
import subprocess

_SERVER = pathlib.Path(__file__).absolute().parent / "echo_server"


class EchoServer:
    def __init__(self, listen, answer_bytes):
        self._process = subprocess.Popen(
            [_SERVER, listen, str(answer_bytes)], stdout=subprocess.PIPE, text=True
        )
        self.address = self._process.stdout.readline().strip()

    def close(self):
        self._process.kill()
        self._process.communicate()


class Exchange:
    """A stream of raw requests, and their answers."""

    def __init__(self, channel, method):
        self._requests = queue.SimpleQueue()
        self._answers = channel.stream_stream(method)(iter(self._requests.get, None))

    def send(self, request):
        self._requests.put(request)

    def __call__(self, *requests):
        """Sends requests, and waits for an answer to each."""
        for request in requests:
            self.send(request)
        for _ in requests:
            next(self._answers)

    def close(self):
        self._answers.cancel()
        self._requests.put(None)
