"""Records the answers of engines for frameworks that get each answer whole, as those of the slime family do."""

from __future__ import annotations

import re
import threading
import warnings
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import grpc
import numpy as np

from sis import _errors
from sis._client import Client, append_many
from sis.engines._adapter import Adapter, entries_of
from sis._entries import AppendEntry, Seal
from sis._outage import Outage
from sis._run import Run


class Span(NamedTuple):
    """The positions [start, end) that weights of one version generated."""

    # As the engine reports it: a number, or its digits. None: the engine reports no versions.
    version: Any
    start: int = 0
    # None: the length of the answer.
    end: Optional[int] = None


def sglang_answer(answer: Mapping[str, Any]) -> Tuple[Any, List[Span]]:
    """Returns the adapter's input from an answer of SGLang's /generate, and which weights generated it."""
    return answer, [Span(answer["meta_info"].get("weight_version"))]


def vllm_answer(answer: Mapping[str, Any]) -> Tuple[Any, List[Span]]:
    """The same of vLLM's /inference/v1/generate, which reports ranges where weights were updated meanwhile."""
    (choice,) = answer["choices"]
    told = choice.get("weight_versions")
    if not told:
        return choice, [Span(answer.get("weight_version"))]
    return choice, [Span(span.get("version", ""), span.get("start"), span.get("end", "")) for span in told]


class AnswerRecorder:
    """Appends answers and advances the run's policy version. Thread-safe."""

    def __init__(self, client: Client, run: Run) -> None:
        self._client, self._run = client, run
        self._outage = Outage()
        # Guards what follows.
        self._lock = threading.Lock()
        # The newest version that the run was advanced to.
        self._policy_version = 0
        # Versions that were refused, as the engine reports them.
        self._refused: Set[str] = set()

    def record(self, name: str, tokens: Sequence[int], adapter: Adapter, output: Any, spans: Sequence[Span]) -> None:
        """Returns once the answer is stored, or given up with a RuntimeWarning.

        An answer that is not one of `tokens`, or that `adapter` can't read, is not recorded, and neither are
        positions of a version that is no number: trainers find them MISSING. A RuntimeWarning names each such
        answer, and each such version once.
        """
        try:
            entries, newest = self._entries(name, tokens, adapter, output, spans)
        except Exception as error:  # Any: engines return anything.
            text = f"SIS: answer {name} is not recorded: {type(error).__name__}: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return
        if not entries:
            return
        with self._lock:
            if newest > self._policy_version:
                advance = lambda: self._client.advance_version(self._run, newest)
                self._outage.asked("the policy version is not told", advance)
                self._policy_version = newest
        append = lambda: append_many(self._client, self._run, entries, sampling=adapter.sampling)
        try:
            self._outage.asked("rollouts are not recorded", append)
        except _errors.AppendError as error:
            # The same answer was drawn before, of the same policy: its record serves both.
            if any(one.code != grpc.StatusCode.ALREADY_EXISTS for one in error.refused):
                raise

    def _entries(
        self, name: str, tokens: Sequence[int], adapter: Adapter, output: Any, spans: Sequence[Span]
    ) -> Tuple[List[AppendEntry], int]:
        """Returns the entries to append, and their newest policy version. Nothing if no version is a number."""
        length, in_answer = len(tokens), adapter.length(output)
        if in_answer != length:
            raise ValueError(f"response_length: got {length}; must be {in_answer}, the length of the engine's answer")
        ranges = _checked(spans, length)
        record = adapter.record(output, self._run.config.top_k, self._run.config.vocabulary_size)
        differ = np.flatnonzero(~np.isnan(record.sampled_log_probs) & (record.sampled_ids != np.asarray(tokens)))
        if len(differ):
            at = int(differ[0])
            raise ValueError(
                f"tokens: position {at}: got {tokens[at]}; must be {record.sampled_ids[at]}, the engine's answer"
            )
        entries: List[AppendEntry] = []
        newest = 0
        for version, start, end in ranges:
            number = self._number(version)
            if number is not None:
                newest = max(newest, number)
                entries += entries_of(name, start, number, record.part(slice(start, end)))
        if entries:
            entries.append(Seal(name, length))
        return entries, newest

    def _number(self, version: Any) -> Optional[int]:
        """None for a version that is no number, with a RuntimeWarning for the first of its kind."""
        if version is None:
            return 0
        if re.fullmatch("[0-9]{1,18}", str(version)):
            return int(version)
        with self._lock:
            known = str(version) in self._refused
            self._refused.add(str(version))
        if not known:
            warnings.warn(
                f"SIS: positions of weight version {version!r} are not recorded: it must be a number, "
                "which counts the updates of the engine's weights",
                RuntimeWarning,
                stacklevel=4,
            )
        return None


def _checked(spans: Sequence[Span], length: int) -> List[Span]:
    """Spans with their ends. ValueError unless they are consecutive and cover `length` positions."""
    ranges = [span._replace(end=length) if span.end is None else span for span in spans]
    starts = [0, *(span.end for span in ranges)]
    ordered = all(isinstance(span.end, int) and span.start == start <= span.end for span, start in zip(ranges, starts))
    if not ordered or starts[-1] != length:
        found = ", ".join(f"{span.version}: [{span.start}, {span.end})" for span in ranges)
        raise ValueError(f"weight_versions: got {found}; must be consecutive ranges of positions from 0 to {length}")
    return ranges
