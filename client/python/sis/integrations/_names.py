"""Names that rollout servers and actors give to the same sequence."""

from __future__ import annotations

import hashlib
from typing import Any, Callable

import grpc
import numpy as np

from sis._errors import AppendError

# Key of a request's session in its `extra_args`.
SESSION = "sis_session"


def session_of(uid: Any, session_id: Any) -> str:
    """Returns the session, as the keys of verl's TransferQueue have it."""
    return f"{uid}_{session_id}"


def name_in(session: str, context: Any) -> str:
    """Returns the name of the tokens that a session's request generated after all tokens before it, `context`.

    A session that generates twice after one context gives both this name: an actor must compare the tokens.
    """
    digest = hashlib.blake2b(np.ascontiguousarray(context, np.int64).tobytes(), digest_size=8)
    return f"{session}.{digest.hexdigest()}"


def name_of(context: Any, sampled_ids: Any, log_probs: Any) -> str:
    """Returns the name of the tokens of one request.

    verl shuffles samples, cuts them into micro-batches and drops fields that it doesn't know, but it passes tokens and
    log-probs on exactly. Two samples of one name were drawn from the same distributions, so one record serves both.

    Args:
        context: int [any], all tokens before.
        sampled_ids: int [T].
        log_probs: float32 [T], nats, as the engine returned them.

    Returns:
        32 hexadecimal digits.

    Raises:
        ValueError: The shapes differ.
    """
    ids = np.ascontiguousarray(sampled_ids, np.int64)
    values = np.ascontiguousarray(log_probs, np.float32)
    if ids.shape != values.shape or ids.ndim != 1:
        raise ValueError(f"log_probs has shape {list(values.shape)}, must be {list(ids.shape)}, one per token")
    digest = hashlib.blake2b(digest_size=16)
    digest.update(len(ids).to_bytes(8, "little"))
    for array in (np.ascontiguousarray(context, np.int64), ids, values):
        digest.update(array.tobytes())
    return digest.hexdigest()


def unless_recorded(append: Callable[[], Any]) -> None:
    """Calls `append`, of sequences that have a `name_of`. If one was recorded before, that record serves both.

    Raises:
        sis.AppendError: Entries were refused for another reason.
    """
    try:
        append()
    except AppendError as error:
        if any(one.code != grpc.StatusCode.ALREADY_EXISTS for one in error.refused):
            raise
