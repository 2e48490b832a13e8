"""Records the answers of engines for frameworks that get each answer whole, as those of the slime family do."""

from __future__ import annotations

import re
import threading
import warnings
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from sis._client import Client, append_many
from sis.engines._adapter import Adapter, entries_of, ranges_within, reasons_of
from sis._entries import AppendEntry, Gap, Seal
from sis.integrations._names import unless_recorded
from sis._outage import Outage
from sis._records import MissingReason
from sis._run import Run


def vllm_answer(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the adapter's input from an answer of vLLM's /inference/v1/generate."""
    (choice,) = answer["choices"]
    return {"weight_version": answer.get("weight_version"), **choice}


class AnswerRecorder:
    """Appends answers and advances the run's policy version. Thread-safe."""

    def __init__(self, client: Client, run: Run) -> None:
        self._client, self._run = client, run
        self._outage = Outage()
        # Guards what follows.
        self._lock = threading.Lock()
        # The newest version that the run was advanced to.
        self._policy_version = 0

    def record(self, name: str, tokens: Sequence[int], adapter: Adapter, output: Any) -> None:
        """Returns once the answer is stored, or given up with a RuntimeWarning.

        An answer that is not one of `tokens`, or that `adapter` can't read, is not recorded. Positions of a version
        that is no number, or of none, are MISSING (UNKNOWN_VERSION). A RuntimeWarning names each such answer and
        version.
        """
        try:
            entries, newest = self._entries(name, tokens, adapter, output)
        except Exception as error:  # Any: engines return anything.
            text = f"SIS: answer {name} is not recorded: {type(error).__name__}: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return
        with self._lock:
            if newest > self._policy_version:
                advance = lambda: self._client.advance_version(self._run, newest)
                self._outage.asked("the policy version is not told", advance)
                self._policy_version = newest
        append = lambda: append_many(self._client, self._run, entries, sampling=adapter.sampling)
        unless_recorded(lambda: self._outage.asked("rollouts are not recorded", append))

    def _entries(
        self, name: str, tokens: Sequence[int], adapter: Adapter, output: Any
    ) -> Tuple[List[AppendEntry], int]:
        """Returns the entries to append, and their newest policy version."""
        length, told = len(tokens), adapter.told(output)
        if told.length != length:
            raise ValueError(f"response_length: got {length}; must be {told.length}, the length of the engine's answer")
        config = self._run.config
        record = adapter.record(output, config.top_k, config.vocabulary_size)
        differ = np.flatnonzero((reasons_of(record.sampled_log_probs) == 0) & (record.sampled_ids != np.asarray(tokens)))
        if len(differ):
            at = int(differ[0])
            raise ValueError(
                f"tokens: position {at}: got {tokens[at]}; must be {record.sampled_ids[at]}, the engine's answer"
            )
        entries: List[AppendEntry] = []
        newest = 0
        for version, start, stop in ranges_within(told.versions, 0, length):
            number = _number(version)
            if number is None:
                entries.append(Gap(name, start, stop - start, MissingReason.UNKNOWN_VERSION))
                continue
            newest = max(newest, number)
            rows = slice(start, stop)
            entries += entries_of(name, start, number, record.part(rows))
        return [*entries, Seal(name, length)], newest


def _number(version: Optional[str]) -> Optional[int]:
    """Returns None for a version that is no number, with a RuntimeWarning, which Python shows once."""
    if version is not None and re.fullmatch("[0-9]{1,18}", version):
        return int(version)
    of = "positions without a weight version" if version is None else f"positions of weight version {version!r}"
    text = f"SIS: {of} are not recorded: the engine must name a number, which counts the updates of its weights"
    warnings.warn(text, RuntimeWarning, stacklevel=4)
    return None
