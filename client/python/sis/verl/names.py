"""How a rollout server and an actor give the same name to what was generated."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

# In the `extra_args` of a request: the session that it is of.
SESSION = "sis_session"


def session_of(uid: Any, session_id: Any) -> str:
    """As in the keys of verl's TransferQueue."""
    return f"{uid}_{session_id}"


def name_in(session: str, context: Any) -> str:
    """The name of what a session's request generated after the `context` of all tokens before it, or of
    the beginning of that.

    A session that generates twice after one context gives both this name: an actor must look at the
    tokens.
    """
    digest = hashlib.blake2b(np.ascontiguousarray(context, np.int64).tobytes(), digest_size=8)
    return f"{session}.{digest.hexdigest()}"


def name_of(context: Any, sampled_ids: Any, log_probs: Any) -> str:
    """The name of what one request generated: T tokens and their log-probs, as the engine returned
    them, after the `context` of all tokens before them.

    verl shuffles samples, cuts them into micro-batches and drops fields that it doesn't know, but
    these it hands on, exactly. Two samples of the same name were drawn from the same distributions,
    so that one record serves both.
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
