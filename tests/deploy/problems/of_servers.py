"""Problems of servers, their limits, files and stores. Each has separate servers."""

import contextlib
import datetime
import pathlib
import time
from typing import Any, List

import numpy as np

import sis
from server.testing.certificates import Authority
from server.testing.live_server import LiveServer
from tests.deploy.problems.problem import SAMPLING, Problem, restarted, uniform_block
from tests.integration.redis_servers import RedisServer


class OfOwnServer(Problem):
    def __init__(self, *flags: str, **named: Any) -> None:
        super().__init__()
        self.server = LiveServer(*flags, **named)
        self.client = sis.Client(self.server.address, timeout=30)

    def close(self) -> None:
        super().close()
        self.client.close()
        self.server.close()


class ServerDown(OfOwnServer):
    def __init__(self) -> None:
        super().__init__()
        self.alerts = {"SisTargetDown": {"instance": self.server.admin_address}}

    def begin(self) -> None:
        self.server.kill()

    def end(self) -> None:
        self.server = restarted(self.server)


class TooManyRuns(OfOwnServer):
    """Trainings open runs, and nobody deletes them."""

    LIMIT = 10

    def __init__(self) -> None:
        super().__init__(f"--max_runs={self.LIMIT}", f"--max_runs_per_owner={self.LIMIT}")
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


class TrainerGone(OfOwnServer):
    """Workers fill a small memory that nobody reads."""

    workers = 6

    def __init__(self) -> None:
        super().__init__("--reader_absence=2s", cache_bytes=16 << 20)
        self.run_id = "SisEvictedUnread"
        self.run = self.client.create_run(self.run_id, seed=1, vocabulary_size=32, top_k=16)
        self.appended: List[str] = []
        here = {"instance": self.server.admin_address}
        self.alerts = {"SisEvictedUnread": {"run": self.run_id}, "SisCacheNearLimit": here}

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


class NoRoom(OfOwnServer):
    """A trainer that is there, and reads nothing of what fills the run's quota."""

    def __init__(self) -> None:
        super().__init__(cache_bytes=16 << 20)
        self.run_id = "SisAppendsWait"
        self.run = self.client.create_run(self.run_id, seed=1, vocabulary_size=32, top_k=16, byte_quota=1 << 20)
        self.alerts = {"SisAppendsWait": {"instance": self.server.admin_address, "run": self.run_id}}

    def step(self) -> None:
        if not self.present:
            return
        self.client.fetch_top_k(self.run, [sis.Slice("another", length=1)])
        with contextlib.suppress(sis.AppendError):
            with self.client.append(self.run, sampling=SAMPLING, retry_timeout=0) as stream:
                name = str(time.monotonic_ns())
                stream.block(name, first_position=0, policy_version=0, **uniform_block(16, 4096))


class Files(OfOwnServer):
    """A certificate that ends soon, and identities that make no sense."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.authority = folder, Authority(folder, "authority")
        self.write(days=30)
        super().__init__(
            f"--tls_certificate={self.certificate}", f"--tls_key={self.key}", f"--identities={folder}/identities",
            "--reload_interval=1s", listen="127.0.0.1:0",
        )  # fmt: skip
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


class QuarantinedRun(OfOwnServer):
    """A server starts again with less than its runs need."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.store = f"--store=rocksdb:{folder}/store"
        super().__init__(self.store)
        self.client.create_run("SisRunsQuarantined", seed=1, vocabulary_size=32, top_k=8)
        self.alerts = {"SisRunsQuarantined": {"instance": self.server.admin_address}}

    def begin(self) -> None:
        self.server.close()
        self.server = restarted(self.server, self.store, "--max_top_k=4")

    def end(self) -> None:
        self.server.close()
        self.server = restarted(self.server, self.store)


class StoreDamaged(OfOwnServer):
    """A table of RocksDB has changed by itself, in the midst of a sequence."""

    ROWS, BLOCKS = 64, 100

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder / "damaged"
        self.store = f"--store=rocksdb:{self.folder}"
        super().__init__(self.store)
        self.run_id = "SisCorruptRecords"
        self.alerts = {"SisCorruptRecords": {"run": self.run_id}}
        self.block = uniform_block(4, self.ROWS)
        self.draw = 0
        self.run = self.client.create_run(self.run_id, seed=1, vocabulary_size=32, top_k=4)
        with self.client.append(self.run, sampling=SAMPLING) as stream:
            for first in range(0, self.ROWS * self.BLOCKS, self.ROWS):
                stream.block("s", first_position=first, policy_version=0, **self.block)
        # A start writes what the log had into a table.
        self.server.close()
        self.server = restarted(self.server, self.store)

    def begin(self) -> None:
        self.server.close()
        (table,) = self.folder.glob("*.sst")
        with table.open("r+b") as file:
            file.seek(table.stat().st_size // 2)
            file.write(b"damage")
        self.server = restarted(self.server, self.store)
        super().begin()

    def step(self) -> None:
        if not self.present:
            return
        self.draw += 1
        with sis.Client(self.server.address) as client:
            client.evaluate(
                self.run,
                [sis.Slice("s", length=self.ROWS * self.BLOCKS)],
                draw=self.draw,
                log_probs=np.tile(self.block["top_k_log_probs"], (self.BLOCKS, 1)),
                sampled_log_probs=np.tile(self.block["sampled_log_probs"], self.BLOCKS),
            )


class RedisFails(OfOwnServer):
    """Redis is down."""

    ALERT = "SisStoreFails"

    def __init__(self, folder: pathlib.Path) -> None:
        self.redis = RedisServer(str(folder / self.ALERT))
        super().__init__(f"--store={self.redis.store}")
        self.run = self.client.create_run(self.ALERT, seed=1, vocabulary_size=32, top_k=4)
        self.alerts = {self.ALERT: {"instance": self.server.admin_address}}

    def begin(self) -> None:
        self.redis.kill()

    def end(self) -> None:
        self.redis.start()

    def step(self) -> None:
        with contextlib.suppress(sis.AppendError):
            with self.client.append(self.run, sampling=SAMPLING, retry_timeout=0) as stream:
                stream.block(str(time.monotonic_ns()), first_position=0, policy_version=0, **uniform_block(4, 8))

    def close(self) -> None:
        super().close()
        self.redis.kill()


class RedisIsSlow(RedisFails):
    """Redis is busy with something else, so that calls wait for it."""

    ALERT = "SisStoreSlow"

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self.alerts["SisLatency"] = {"grpc_method": "Release"}

    def begin(self) -> None:
        self.present = True

    def end(self) -> None:
        self.present = False

    def step(self) -> None:
        if self.present:
            self.redis.ask("CLIENT", "PAUSE", "900", "ALL")
        self.client.release(self.run, ["s"])
        super().step()
