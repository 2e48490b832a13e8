"""What is wrong with servers, their limits, files and stores. Each has servers of its own."""

import contextlib
import datetime
import pathlib
import time
from typing import List

import sis
from server.testing.certificates import Authority
from server.testing.hostile_memcached import HostileMemcached
from server.testing.live_server import LiveServer
from tests.deploy.problems.problem import SAMPLING, Problem, restarted, uniform_block


class ServerDown(Problem):
    def __init__(self) -> None:
        super().__init__()
        self.server = LiveServer()
        self.alerts = {"SisTargetDown": {"instance": self.server.admin_address}}

    def begin(self) -> None:
        self.server.kill()

    def end(self) -> None:
        self.server = restarted(self.server)

    def close(self) -> None:
        super().close()
        self.server.close()


class TooManyRuns(Problem):
    """Trainings open runs, and nobody deletes them."""

    LIMIT = 10

    def __init__(self) -> None:
        super().__init__()
        self.server = LiveServer(f"--max_runs={self.LIMIT}", f"--max_runs_per_owner={self.LIMIT}")
        self.client = sis.Client(self.server.address, timeout=5)
        self.alerts = {
            "SisRunsNearLimit": {"instance": self.server.admin_address, "limit": "max_runs"},
            "SisErrors": {"grpc_method": "CreateRun"},
        }
        self.runs = 0

    def step(self) -> None:
        self.runs += 1
        with contextlib.suppress(sis.ResourceExhausted):
            self.client.create_run(f"run-{self.runs}", seed=1, vocabulary_size=32, top_k=4)
        if not self.present:
            for status in self.client.list_runs():
                self.client.delete_run(status.run.id)

    def close(self) -> None:
        super().close()
        self.client.close()
        self.server.close()


class TrainerGone(Problem):
    """Workers fill a small memory that nobody reads."""

    # Some always wait.
    workers = 6

    def __init__(self) -> None:
        super().__init__()
        self.server = LiveServer("--append_patience=2s", cache_bytes=16 << 20)
        self.client = sis.Client(self.server.address, timeout=30)
        self.run_id = "SisEvictedUnread"
        self.run = self.client.create_run(self.run_id, seed=1, vocabulary_size=32, top_k=16)
        self.appended: List[str] = []
        here = {"instance": self.server.admin_address}
        self.alerts = {"SisEvictedUnread": {"run": self.run_id}, "SisAppendsWait": here, "SisCacheNearLimit": here}

    def step(self) -> None:
        name = str(time.monotonic_ns())
        rows = 16384
        with self.client.append(self.run, sampling=SAMPLING) as stream:
            stream.block(name, first_position=0, policy_version=0, **uniform_block(16, rows))
            stream.seal(name, length=rows)
        self.appended.append(name)
        while not self.present and self.appended:
            with contextlib.suppress(IndexError):
                name = self.appended.pop()
                self.client.fetch_top_k(self.run, [sis.Slice(name, length=rows)])
                self.client.release(self.run, [name])

    def close(self) -> None:
        self.present = False
        super().close()
        self.client.close()
        self.server.close()


class Files(Problem):
    """A certificate that ends soon, and identities that make no sense."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self.folder = folder
        self.authority = Authority(folder, "authority")
        self.write(days=30)
        self.server = LiveServer(
            f"--tls_certificate={self.certificate}",
            f"--tls_key={self.key}",
            f"--identities={folder}/identities",
            "--reload_interval=1s",
            listen="127.0.0.1:0",
        )
        here = {"instance": self.server.admin_address}
        self.alerts = {"SisCertificateExpires": here, "SisReloadFailed": {**here, "files": "identities"}}

    def write(self, days: int, identities: str = f"token {'t' * 32} alice admin") -> None:
        self.certificate, self.key = self.authority.issue("localhost", "server", datetime.timedelta(days=days))
        new = self.folder / "identities.new"
        new.write_text(identities)
        new.rename(self.folder / "identities")

    def begin(self) -> None:
        self.write(days=2, identities="token short alice admin")

    def end(self) -> None:
        self.write(days=30)

    def close(self) -> None:
        super().close()
        self.server.close()


class RunSetAside(Problem):
    """A server starts again with less than its runs need."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self.store = f"--store=rocksdb:{folder}/store"
        self.server = LiveServer(self.store)
        with sis.Client(self.server.address) as client:
            client.create_run("SisRunsSetAside", seed=1, vocabulary_size=32, top_k=8)
        self.alerts = {"SisRunsSetAside": {"instance": self.server.admin_address}}

    def begin(self) -> None:
        self.server.close()
        self.server = restarted(self.server, self.store, "--max_top_k=4")

    def end(self) -> None:
        self.server.close()
        self.server = restarted(self.server, self.store)

    def close(self) -> None:
        super().close()
        self.server.close()


class LateNode(HostileMemcached):
    """A node of memcached that answers after `seconds`, and whose memory can be damaged."""

    seconds = 0.0

    def _answer(self, command, value):
        time.sleep(self.seconds)
        return super()._answer(command, value)

    def damage(self) -> None:
        """The last byte of what is too long for anything but records."""
        with self._lock:
            for key, (item, version) in self._items.items():
                if len(item) > 500:
                    self._items[key] = item[:-1] + bytes([item[-1] ^ 1]), version


class StoreLate(Problem):
    """Every answer of its store is late."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self.node = LateNode(f"{folder}/late")
        self.server = LiveServer(f"--store=memcached:{self.node.path}")
        self.client = sis.Client(self.server.address)
        self.alerts = {"SisLatency": {"grpc_method": "CreateRun"}}

    def begin(self) -> None:
        self.node.seconds = 0.3

    def end(self) -> None:
        self.node.seconds = 0.0

    def step(self) -> None:
        self.client.create_run("run", seed=1, vocabulary_size=32, top_k=4)
        self.client.delete_run("run")

    def close(self) -> None:
        super().close()
        self.client.close()
        self.server.close()
        self.node.close()


class StoreDamaged(Problem):
    """What a node of memcached holds has changed by itself. A second server has it from there."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self.node = LateNode(f"{folder}/damaged")
        self.writer, self.server = (LiveServer(f"--store=memcached:{self.node.path}") for _ in range(2))
        self.run_id = "SisCorruptPages"
        self.alerts = {"SisCorruptPages": {"run": self.run_id}}
        self.clients = [sis.Client(server.address) for server in (self.writer, self.server)]
        self.run, _ = (
            client.create_run(self.run_id, seed=1, vocabulary_size=32, top_k=4) for client in self.clients
        )
        self.sequences = 0

    def step(self) -> None:
        writer, reader = self.clients
        self.sequences += 1
        name, block = str(self.sequences), uniform_block(4, 64)
        with writer.append(self.run, sampling=SAMPLING) as stream:
            stream.block(name, first_position=0, policy_version=0, **block)
            stream.seal(name, length=64)
        if self.present:
            self.node.damage()
        reader.evaluate(
            self.run,
            [sis.Slice(name, length=64)],
            draw=self.sequences,
            log_probs=block["top_k_log_probs"],
            sampled_log_probs=block["sampled_log_probs"],
        )

    def close(self) -> None:
        super().close()
        for part in (*self.clients, self.writer, self.server, self.node):
            part.close()
