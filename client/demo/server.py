"""A server of our own for as long as the demonstration runs."""

import subprocess
import urllib.request

import grpc

# grpc.health.v1.HealthCheckResponse with status SERVING; the request for the whole server is empty.
_SERVING = b"\x08\x01"
_SHUTDOWN_SECONDS = 15
_SHOWN_METRICS = (
    "sis_tokens_total",
    "sis_deviation_nats_total",
    "sis_modified_deviation_nats_total",
    "sis_ingest_positions_total",
)


class Server:
    """The server binary as a child process, on free ports. A context manager: leaving the block
    ends it."""

    def __init__(self, binary):
        """Returns when the server is ready. RuntimeError if it ends before."""
        # A session of its own, so that Ctrl-C does not end it before those who still talk to it.
        self._process = subprocess.Popen(
            [binary, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--cache_bytes=1073741824"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        addresses = {}
        for line in self._process.stdout:
            if line.strip() == "ready":
                break
            name, _, value = line.strip().partition(": ")
            addresses[name] = value
        else:
            raise RuntimeError(f"{binary} ended with status {self._process.wait()} before it was ready")
        self.address = addresses["grpc"]
        self.admin_address = addresses["admin"]

    def is_healthy(self):
        """What the server's own health service says."""
        with grpc.insecure_channel(self.address) as channel:
            return channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10) == _SERVING

    def counted(self, run_id):
        """What a report shows of a run: some lines of /metrics that are not 0, in order."""
        run = f'run="{run_id}"'
        return sorted(
            line
            for line in self.metrics()
            if line.startswith(_SHOWN_METRICS) and run in line and not line.endswith(" 0")
        )

    def metrics(self):
        """The lines of /metrics that have values."""
        with urllib.request.urlopen(f"http://{self.admin_address}/metrics", timeout=10) as response:
            text = response.read().decode()
        return [line for line in text.splitlines() if line and not line.startswith("#")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(_SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
