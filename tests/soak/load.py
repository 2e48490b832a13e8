"""Load on one server: runs and clients come and go, and what is appended is always more than
the server has memory for."""

import collections
import http.client
import random
import socket
import threading
import time
import urllib.request

import numpy as np

import sis
from server.testing.random_records import random_record

VOCABULARY, TOP_K, POSITIONS = 1000, 20, 256
SEQUENCES_PER_BATCH = 30
BATCHES_PER_CLIENT = 8
RUN_SECONDS = 10.0  # after which work goes on in a new run
RUNS_KEPT = 3
FAREWELL_SECONDS = 5.0  # in which who works on a run that has ended finishes the batch
SAMPLING = sis.Sampling("raw")


class Load:
    """Threads that use the server at `address` until stop(). `rest`: seconds that each sleeps after
    a batch or a step, so that the load leaves some of the machine to others."""

    def __init__(self, name, address, rest):
        self._name, self._address, self._rest = name, address, rest
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._records = random_record(1, POSITIONS, VOCABULARY, TOP_K)._asdict()
        self._runs = collections.deque()
        self._ended = collections.deque()  # runs to delete; used by one thread
        self._batches = collections.deque(maxlen=40)  # (run, sequences) that were acked
        self.failures = []  # what nobody asked for
        self.counts = collections.Counter()
        self._latencies = collections.defaultdict(list)  # seconds, since they were last taken
        self._open_run(0)
        jobs = [self._append, self._append, self._train, self._turn_runs_over, self._say_garbage]
        self._threads = [
            threading.Thread(target=self._guard, args=[job, number]) for number, job in enumerate(jobs)
        ]
        for thread in self._threads:
            thread.start()

    def read_metrics(self, admin_address):
        """The server's gauges by name. A read that fails is a failure like that of any other call:
        it is kept in mind, and the answer is None."""
        try:
            with urllib.request.urlopen(f"http://{admin_address}/metrics", timeout=30) as page:
                lines = page.read().decode().splitlines()
        except (OSError, http.client.HTTPException) as error:
            self._count("reads of /metrics that failed")
            self._fail("/metrics", error)
            return None
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def take_latencies(self):
        with self._lock:
            taken, self._latencies = self._latencies, collections.defaultdict(list)
        return dict(taken)

    def _guard(self, job, number):
        choices = random.Random(number)
        while not self._stop.is_set():
            try:
                with sis.Client(self._address, timeout=30) as client:
                    self._count("clients")
                    job(client, choices)
            except Exception as error:  # which the report counts
                self._fail(job.__name__, error)
                self._stop.wait(1)

    def _fail(self, what, error):
        with self._lock:
            self.failures.append(f"{self._name}, {what}: {error!r}")

    def _count(self, what, number=1):
        with self._lock:
            self.counts[what] += number

    def _timed(self, what, call, *arguments, **named):
        start = time.monotonic()
        result = call(*arguments, **named)
        with self._lock:
            self._latencies[what].append(time.monotonic() - start)
        return result

    def _open_run(self, number):
        with sis.Client(self._address, timeout=30) as client:
            # Nobody reads all of it.
            run = client.create_run(
                f"run-{number}", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, evict_unread=True, time_to_live=60
            )
        with self._lock:
            self._runs.append(run)
            self.counts["runs"] += 1

    def _turn_runs_over(self, client, _):
        number = self.counts["runs"]
        if self._stop.wait(RUN_SECONDS):
            return
        self._open_run(number)
        if len(self._runs) <= RUNS_KEPT:
            return
        with self._lock:
            ended = self._runs.popleft()
            self._ended.append(ended)
            self._batches = collections.deque(
                (batch for batch in self._batches if batch[0].id != ended.id), self._batches.maxlen
            )
        if self._stop.wait(FAREWELL_SECONDS):
            return
        while self._ended:
            client.delete_run(self._ended[0].id)
            # If a deletion fails, it and the later ones are retried next time.
            self._ended.popleft()

    def _append(self, client, choices):
        run = self._runs[-1]
        stream = client.append(run, sampling=SAMPLING, retry_timeout=20)
        for _ in range(BATCHES_PER_CLIENT):
            if self._stop.is_set() or run.id != self._runs[-1].id:
                break
            sequences = [f"{choices.getrandbits(64):016x}" for _ in range(SEQUENCES_PER_BATCH)]
            for sequence in sequences:
                stream.block(sequence, first_position=0, policy_version=0, **self._records)
                if choices.random() < 0.9:
                    stream.seal(sequence, length=POSITIONS)
            try:
                self._timed("append", stream.flush)
            except sis.AppendError as error:
                # Asked for: there is more than fits.
                if {entry.code.name for entry in error.refused} - {"RESOURCE_EXHAUSTED"}:
                    raise
                self._count("entries refused for lack of room", len(error.refused))
            else:
                with self._lock:
                    self._batches.append((run, sequences))
                    self.counts["tokens acked"] += POSITIONS * len(sequences)
            self._stop.wait(self._rest)
        # One worker in four dies with something under way.
        if choices.random() < 0.25:
            stream.block("lost", first_position=0, policy_version=0, **self._records)
            stream.abandon()
        else:
            stream.close()

    def _train(self, client, choices):
        for _ in range(BATCHES_PER_CLIENT):
            with self._lock:
                batch = choices.choice(self._batches) if self._batches else None
            if self._stop.is_set() or batch is None:
                self._stop.wait(self._rest)
                return
            run, sequences = batch
            slices = [sis.Slice(sequence, 0, POSITIONS) for sequence in sequences]
            try:
                records = self._timed(
                    "fetch", client.fetch_top_k, run, slices, keep_seconds=choices.choice([0, 0, 1, 5])
                )
                current = np.where(records.present, records.sampled_log_probs, -1)
                evaluation = self._timed(
                    "evaluate", client.evaluate, run, records, draw=choices.getrandbits(30),
                    log_probs=records.log_probs, sampled_log_probs=current,
                )  # fmt: skip
                self._count("tokens evaluated", evaluation.totals.scored)
                if choices.random() < 0.3:
                    client.release(run, sequences)
            except sis.NotFound:
                self._count("steps of a run that was deleted meanwhile")
            self._stop.wait(self._rest)

    def _say_garbage(self, _, choices):
        host, _, port = self._address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(choices.randbytes(100))
        self._count("connections that say garbage")
        self._stop.wait(1)
