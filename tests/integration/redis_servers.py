"""Real redis-server processes on loopback ports: alone, with replicas, or as a cluster."""

import pathlib
import random
import signal
import socket
import subprocess
from typing import Callable, List, Optional

from server.testing.until import until


def _free_port() -> int:
    """A port below those that the system gives to clients, so that it stays free while its server is
    down; a cluster takes the port 10,000 above it too."""
    while True:
        port = random.randrange(11_000, 22_000)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 10_000))
                return port
            except OSError:
                continue


class RedisServer:
    """Serves from when it is made until close() or kill(), and again after start(), with the same files
    at the same port."""

    def __init__(self, folder: str, appendfsync: Optional[str] = "everysec", *options: str) -> None:
        """`appendfsync`: None means that nothing is written to the disk. `folder` must not exist."""
        self.port = _free_port()
        self.folder = pathlib.Path(folder)
        self.folder.mkdir()
        log = ["--appendonly", "yes", "--appendfsync", appendfsync] if appendfsync else ["--appendonly", "no"]
        self._command = [
            "redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", folder, "--save", "",
            "--logfile", f"{folder}/log", *log, *options,
        ]  # fmt: skip
        self.start()

    @property
    def node(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def store(self) -> str:
        """The value of --store."""
        return f"redis://{self.node}"

    def start(self) -> None:
        self.process = subprocess.Popen(self._command)
        until(lambda: self.process.poll() is not None or self.ask("PING") == "PONG")
        if self.process.returncode is not None:
            raise RuntimeError(f"redis-server ended: {(self.folder / 'log').read_text()}")

    def ask(self, *words: str) -> str:
        """Returns the output of redis-cli."""
        command = ["redis-cli", "-p", str(self.port), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()

    def close(self) -> None:
        """As an operator ends it."""
        self.process.terminate()
        self.process.wait(timeout=30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """It takes connections, and answers nothing until thaw()."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class RedisCluster:
    """Three primaries without replicas, which serve the slots that they have while others are away."""

    def __init__(self, folder: str, appendfsync: Optional[str] = "everysec") -> None:
        options = [
            "--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no",
        ]  # fmt: skip
        self.nodes: List[RedisServer] = []
        try:
            for index in range(3):
                self.nodes.append(RedisServer(f"{folder}/redis{index}", appendfsync, *options))
            names = [node.node for node in self.nodes]
            command = ["redis-cli", "--cluster", "create", *names, "--cluster-yes"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
            self.wait_until_whole()
        except BaseException:
            self.kill()
            raise

    @property
    def store(self) -> str:
        """The value of --store."""
        return f"redis://{','.join(node.node for node in self.nodes)}"

    def wait_until_whole(self) -> None:
        """Until every node knows that all slots are served."""
        def sees_all(node: RedisServer) -> bool:
            info = node.ask("CLUSTER", "INFO").split()
            return "cluster_state:ok" in info and "cluster_slots_ok:16384" in info

        until(lambda: all(sees_all(node) for node in self.nodes))

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()


def with_replica(folder: str, add_cleanup: Callable[..., object]) -> List[RedisServer]:
    """A primary and a replica of it, outside a cluster. `add_cleanup` is the test's addCleanup."""
    servers = []
    for name in ("primary", "replica"):
        servers.append(RedisServer(f"{folder}/{name}"))
        add_cleanup(servers[-1].kill)
    primary, replica = servers
    replica.ask("REPLICAOF", "127.0.0.1", str(primary.port))
    until(lambda: "master_link_status:up" in replica.ask("INFO", "replication").split())
    return servers
