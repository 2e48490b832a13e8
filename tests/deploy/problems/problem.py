"""A problem that an alert reports, provoked on real servers, and ended as its runbook says."""

import threading
from typing import Any, Dict, List, Optional

import numpy as np

import sis
from server.testing.live_server import LiveServer

PAUSE_SECONDS = 1.0
SAMPLING = sis.Sampling("processed", temperature=1.0)


class Problem:
    """Healthy until begin(), and again after end(). Between them each of `alerts` fires, with these
    labels and perhaps more."""

    # By name.
    alerts: Dict[str, Dict[str, str]]
    # Id of the run that the runbook inspects, if there is one.
    run_id: Optional[str] = None
    server: LiveServer
    # Threads that call step().
    workers = 1

    def __init__(self) -> None:
        self.present = False
        self.failures: List[BaseException] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._go_on, daemon=True) for _ in range(self.workers)]

    def begin(self) -> None:
        self.present = True

    def end(self) -> None:
        self.present = False

    def step(self) -> None:
        """Does the work that repeats all the time. With self.present it shows the problem."""

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _go_on(self) -> None:
        while not self._stop.wait(PAUSE_SECONDS):
            try:
                self.step()
            except BaseException as error:
                self.failures.append(error)
                return


def restarted(server: LiveServer, *flags: str) -> LiveServer:
    """Starts a server at the addresses of `server`, which has ended, for Prometheus and the clients."""
    return LiveServer(*flags, f"--admin={server.admin_address}", listen=server.address)


def uniform_block(top_k: int, rows: int) -> Dict[str, Any]:
    """Records of a policy that finds the first tokens equally likely."""
    ids = np.tile(np.arange(top_k, dtype=np.int32), (rows, 1))
    log_probs = np.full((rows, top_k), -np.log(top_k), np.float32)
    return {
        "top_k_ids": ids,
        "top_k_log_probs": log_probs,
        "sampled_ids": ids[:, 0],
        "sampled_log_probs": log_probs[:, 0],
    }
