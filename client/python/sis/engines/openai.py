"""Log-probs as the API of OpenAI has them, which servers of vLLM, SGLang and llama.cpp write too."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence

TOKEN_ID = "token_id:"


class Position(NamedTuple):
    """A sampled token, and the listed tokens, in the order of the answer.

    Attributes:
        token: Id of the sampled token.
        log_prob: Its log-prob, nats; None: null.
        ids: Ids of the listed tokens.
        log_probs: Their log-probs, nats.
    """

    token: int
    log_prob: Optional[float]
    ids: Sequence[int]
    log_probs: Sequence[Optional[float]]


def chat_positions(
    content: Iterable[Mapping[str, Any]],
    id_of: Callable[[Mapping[str, Any]], int],
    log_prob: str = "logprob",
    listed: str = "top_logprobs",
) -> Iterator[Position]:
    """Yields the positions of `content`: objects that have a list of objects for the most probable tokens.

    Args:
        content: The objects, one per position.
        id_of: Returns the id of a token from its object.
        log_prob, listed: Names of the fields for the log-prob and for the list.

    Yields:
        Positions, in the order of `content`.
    """
    for entry in content:
        tops = entry[listed]
        yield Position(id_of(entry), entry[log_prob], list(map(id_of, tops)), [top[log_prob] for top in tops])


def completion_positions(log_probs: Mapping[str, Sequence[Any]], id_of: Callable[[str], int]) -> Iterator[Position]:
    """Yields the positions of a completion.

    Args:
        log_probs: Its `logprobs`: tokens, token_logprobs and top_logprobs of one length.
        id_of: Returns the id of a token from its text.

    Yields:
        Positions, in the order of the tokens.
    """
    columns: List[Sequence[Any]] = [log_probs[name] for name in ("tokens", "token_logprobs", "top_logprobs")]
    for token, own, tops in zip(*columns):
        yield Position(id_of(token), own, list(map(id_of, tops)), list(tops.values()))
