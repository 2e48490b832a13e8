"""Finds the policy versions of the weights that an engine names, and waits for names that nobody has announced yet."""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Dict, List, Optional, Sequence, Set, Tuple

from sis import _errors
from sis._client import Client
from sis.engines._adapter import Piece
from sis._records import MissingReason, SequenceRef
from sis._run import Run

# Seconds between questions for labels.
ASK_AFTER = 0.5
# Positions that wait for their label; the oldest ones are given up for others.
MAX_UNLABELLED = 1 << 15
# The name that vLLM and SGLang give to weights that nobody has named.
_UNNAMED = "default"


@dataclasses.dataclass
class Work:
    """Consecutive positions of one sequence that the same weights generated, to be sent, perhaps with its seal."""

    sequence: SequenceRef
    first_position: int
    # When it was noted, on time.monotonic().
    noted: float
    # Name of the weights that the engine gives, and their version that the caller gives.
    label: Optional[str] = None
    by_hand: Optional[int] = None
    # Whether `policy_version` is decided. If it is then None, the positions become a gap, because of `wrong`.
    resolved: bool = False
    policy_version: Optional[int] = None
    wrong: Optional[str] = None
    # None: label and caller contradict each other.
    reason: Optional[MissingReason] = None
    positions: int = 0
    pieces: List[Piece] = dataclasses.field(default_factory=list)
    # Length to seal the sequence at, after the pieces.
    sealed_length: Optional[int] = None


class Labels:
    """The versions of one run by label. For one thread."""

    def __init__(self, client: Client, run: Run, patience: float) -> None:
        """patience: Seconds for which a label is waited for."""
        self._client = client
        self._run = run
        self._patience = patience
        self._versions: Dict[str, int] = {}
        # Labels that were not announced in time.
        self._late: Set[Optional[str]] = set()
        # Time of the next question for labels.
        self._ask_at = 0.0

    def resolve(self, work: Sequence[Work]) -> Tuple[List[Work], List[Work]]:
        """Returns the work whose version is decided, and the work that waits for a label, or is behind such work of its
        sequence."""
        now = time.monotonic()
        if now >= self._ask_at and any(
            item.label is not None and self._version_of(item.label) is None for item in work
        ):
            self._ask_at = now + ASK_AFTER
            self._ask()
        waiting = [item for item in work if not self._resolve(item)]
        excess = sum(item.positions for item in waiting) - MAX_UNLABELLED
        for item in waiting:
            if now - item.noted >= self._patience:
                # Later positions of these weights don't wait as long again.
                self._late.add(item.label)
            if excess > 0 or item.label in self._late:
                excess -= item.positions
                self._resolve(item, give_up=True)
        ready: List[Work] = []
        unresolved: List[Work] = []
        behind: Set[SequenceRef] = set()
        for item in work:
            if not item.resolved:
                behind.add(item.sequence)
            (unresolved if item.sequence in behind else ready).append(item)
        return ready, unresolved

    def _ask(self) -> None:
        try:
            status = self._client.get_run(self._run.id)
        except _errors.Error:
            return  # The recorder's stream meets it too.
        if status.run.incarnation == self._run.incarnation:
            self._versions.update(status.version_labels)

    def _version_of(self, label: str) -> Optional[int]:
        return int(label) if re.fullmatch("[0-9]{1,19}", label) else self._versions.get(label)

    def _resolve(self, item: Work, give_up: bool = False) -> bool:
        """Decides which policy version the item's weights are. Returns False while it waits for their label."""
        if item.resolved:
            return True
        label, by_hand = item.label, item.by_hand
        version = by_hand if label is None else self._version_of(label)
        why = "the engine names no weight version, and Recorder.policy_version is not set"
        if version is None and label is not None:
            if by_hand is None or label != _UNNAMED:
                if not give_up and label not in self._late:
                    return False
                why = f"its weights' label {label!r} was not announced in time (Client.advance_version)"
            version = by_hand
        item.resolved, item.policy_version = True, version
        if version is None:
            item.wrong, item.reason = why, MissingReason.UNKNOWN_VERSION
        elif by_hand is not None and version != by_hand:
            item.policy_version = None
            item.wrong = f"policy_version is {by_hand}, but the engine's weights are {label!r}, version {version}"
        return True
