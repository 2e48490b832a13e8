"""Workers and a trainer of one run, which go on while servers and stores come and go."""

import shutil
import tempfile
import threading
import time
from typing import AbstractSet, Callable, Dict, List, Sequence, Set, Tuple

import numpy as np

import sis
from server.testing.live_server import LiveServer
from server.testing.random_records import random_record
from tests.integration.live_server import ServersTest

VOCABULARY, TOP_K, POSITIONS = 40, 4, 30
RUN_ID = "run"
# Number of sequences that a step evaluates: those acked last.
STEP = 12
# Number of sequences in one fetch, which fit the servers' memory.
FETCHED = 500
# Reasons for which a client may find records missing while a server without a shared store is away.
AWAY = {sis.MissingReason.STORE_DOWN, sis.MissingReason.NEVER_ARRIVED}


def recorded(sequence: str) -> sis.TopK:
    """The records of a sequence, the same whenever it is asked for."""
    return random_record(int(sequence), POSITIONS, VOCABULARY, TOP_K)


def create_run(client: sis.Client) -> sis.Run:
    return client.create_run(RUN_ID, seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding="float32")


def missing_of(addresses: Sequence[str], sequences: Sequence[str]) -> Dict[str, sis.MissingReason]:
    """Which of the sequences are missing, and why. Raises AssertionError if another isn't bit by bit what
    was sent."""
    missing: Dict[str, sis.MissingReason] = {}
    with sis.Client(addresses, timeout=20) as client:
        run = client.get_run(RUN_ID).run
        for begin in range(0, len(sequences), FETCHED):
            some = sequences[begin : begin + FETCHED]
            records = client.fetch_top_k(run, [sis.Slice(sequence, 0, POSITIONS) for sequence in some])
            missing.update({some[part.slice]: part.reason for part in records.missing})
            for number, sequence in enumerate(some):
                rows = records.rows(number)
                if records.present[rows].all():
                    for name, array in recorded(sequence)._asdict().items():
                        got = getattr(records, name.replace("top_k_", ""))[rows]
                        assert got.tobytes() == array.astype(got.dtype).tobytes(), (sequence, name)
    return missing


class Load:
    """Workers that send what is refused again, and a trainer, until it is stopped. Each has a client
    of its own."""

    def __init__(
        self, addresses: Sequence[str], workers: int = 2, allowed: AbstractSet[sis.MissingReason] = AWAY
    ) -> None:
        """`allowed`: the reasons for which a step may find an acked sequence missing."""
        self._addresses, self._workers, self._allowed = addresses, workers, allowed
        self._stop = threading.Event()
        self._lock = threading.Lock()
        # When each sequence was acked, on time.monotonic().
        self._acked: Dict[str, float] = {}
        self.steps = 0
        self.steps_with_all = 0  # in a row, at present
        self.failures: List[Exception] = []
        jobs = [threading.Thread(target=self._guard, args=[self._work, n]) for n in range(workers)]
        self._threads = [*jobs, threading.Thread(target=self._guard, args=[self._train])]
        for thread in self._threads:
            thread.start()

    def acked(self, before: float = float("inf")) -> List[str]:
        """The sequences that were acked before this time on time.monotonic(), in order."""
        with self._lock:
            return [sequence for sequence, at in self._acked.items() if at < before]

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def until(self, done: Callable[[], bool]) -> None:
        for _ in range(1200):
            if done() or self.failures:
                return
            time.sleep(0.05)
        raise AssertionError(f"still not, after {self.steps} steps and {len(self.acked())} acks")

    def go_on(self, sequences: int = 24, steps: int = 3) -> None:
        """Returns when so many more sequences are acked and so many steps in a row had all they asked for."""
        before = len(self.acked())
        self.steps_with_all = 0
        self.until(lambda: len(self.acked()) >= before + sequences and self.steps_with_all >= steps)

    def _guard(self, job, *arguments) -> None:
        try:
            with sis.Client(self._addresses, timeout=20) as client:
                job(client, client.get_run(RUN_ID).run, *arguments)
        except Exception as error:  # which the test asserts
            self.failures.append(error)

    def _work(self, client: sis.Client, run: sis.Run, worker: int) -> None:
        number = worker
        stream = client.append(run, sampling=sis.Sampling("raw"))
        while not self._stop.is_set():
            # A step's worth at a time, so that all replicas have something under way.
            wanted = {str(number + self._workers * i) for i in range(6)}
            number += self._workers * len(wanted)
            while wanted and not self._stop.is_set():
                for sequence in wanted:
                    stream.block(sequence, first_position=0, policy_version=0, **recorded(sequence)._asdict())
                    stream.seal(sequence, length=POSITIONS)
                refused: Set[str] = set()
                try:
                    stream.flush()
                except sis.AppendError as error:
                    assert {entry.code.name for entry in error.refused} == {"UNAVAILABLE"}, error
                    refused = {entry.sequence for entry in error.refused}
                with self._lock:
                    self._acked.update(dict.fromkeys(sorted(wanted - refused), time.monotonic()))
                wanted = refused
                if refused:
                    time.sleep(0.05)
        stream.abandon()

    def _train(self, client: sis.Client, run: sis.Run) -> None:
        while not self._stop.is_set():
            sequences = self.acked()[-STEP:]
            if not sequences:
                time.sleep(0.01)
                continue
            records = client.fetch_top_k(run, [sis.Slice(sequence, 0, POSITIONS) for sequence in sequences])
            self.steps += 1
            evaluation = client.evaluate(
                run,
                records,
                draw=self.steps,
                log_probs=records.log_probs,
                sampled_log_probs=np.where(records.present, records.sampled_log_probs, -1),
            )
            assert {missing.reason for missing in evaluation.missing} <= self._allowed, evaluation.missing
            self.steps_with_all = 0 if evaluation.missing else self.steps_with_all + 1


class LoadedServersTest(ServersTest):
    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(dir="/tmp", prefix="sis_")  # names of sockets are short
        self.addCleanup(shutil.rmtree, self.folder)

    def serve(self, store: str, listen: str = "127.0.0.1:0") -> LiveServer:
        return super().serve(f"--store={store}", listen=listen, cache_bytes=16 << 20)

    def begin(
        self, stores: Sequence[str], allowed: AbstractSet[sis.MissingReason] = AWAY
    ) -> Tuple[List[LiveServer], List[str], Load]:
        """Servers with these stores, their addresses, and load on them."""
        servers = [self.serve(store) for store in stores]
        addresses = [server.address for server in servers]
        with sis.Client(addresses, timeout=20) as client:
            create_run(client)
        load = Load(addresses, allowed=allowed)
        self.addCleanup(load.stop)
        return servers, addresses, load

    def end(self, load: Load) -> None:
        load.stop()
        self.assertEqual(load.failures, [])
