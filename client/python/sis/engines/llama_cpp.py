"""llama.cpp: what its server answers to /completion."""

from __future__ import annotations

import operator
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from sis.engines._adapter import NULL_LOG_PROB, Adapter, Columns, MalformedOutput, Piece, Told
from sis.engines._lists import columns_of
from sis.engines.openai import Position, chat_positions
from sis._run import Sampling

# Settings that the service has no word for: the sampler that must be there for it to count (None:
# it always does), and its value that changes nothing.
_OTHERS = {
    "typical_p": ("typ_p", 1.0),
    "top_n_sigma": ("top_n_sigma", -1.0),
    "xtc_probability": ("xtc", 0.0),
    "dry_multiplier": ("dry", 0.0),
    "dynatemp_range": ("temperature", 0.0),
    "mirostat": (None, 0),
}
_ID = operator.itemgetter("id")


def field_names(after_sampling: bool) -> Tuple[str, str]:
    """Returns the names of fields in a position of an answer.

    Args:
        after_sampling: Whether the request has "post_sampling_probs": then values are probabilities, not log-probs.

    Returns:
        The name of a token's value, and the name of the list of the most probable tokens.
    """
    return ("prob", "top_probs") if after_sampling else ("logprob", "top_logprobs")


class LlamaCppAdapter(Adapter):
    """Reads whole answers, not streamed ones, to requests with "n_probs": K and "return_tokens": true.

    The log-probs are raw unless the request has "post_sampling_probs": true, which it needs with any filter and any
    temperature except 1.

    The server leaves out the log-probs of tokens that end within a character. Their positions have no usable log-prob,
    and neither have positions that may have been left out, such as both of two equal tokens.
    """

    cumulative = True

    def __init__(self, answer: Mapping[str, Any]) -> None:
        """Makes the adapter.

        Args:
            answer: Any answer to a request of this kind; it has the settings that the server used.

        Raises:
            ValueError: The settings are refused by `sampling`.
        """
        self.sampling = sampling(answer["generation_settings"])

    def told(self, output: Mapping[str, Any]) -> Told:
        return Told(len(output["tokens"]), "aborted" if output.get("stop_type") == "none" else "finished")

    def columns(self, pieces: Sequence[Piece]) -> Columns:
        after = self.sampling.log_probs == "processed"
        positions: List[Position] = []
        for piece in pieces:
            answer = piece.output
            tokens = answer["tokens"]
            if len(tokens) != answer["tokens_predicted"]:
                raise MalformedOutput(
                    f"the answer has {len(tokens)} of {answer['tokens_predicted']} tokens: the request needs "
                    "'return_tokens': true, and no 'stream'"
                )
            if sampling(answer["generation_settings"]) != self.sampling:
                raise MalformedOutput("the answer was sampled with other settings than the adapter was made for")
            listed = answer.get("completion_probabilities")
            if listed is None:
                raise MalformedOutput("the answer has no log-probs: the request needs 'n_probs'")
            here = slice(piece.start, piece.stop)
            of_token = aligned(tokens, [entry["id"] for entry in listed])[here]
            there = chat_positions((listed[index] for index in of_token if index >= 0), _ID, *field_names(after))
            positions += [
                next(there) if index >= 0 else Position(token, None, (), ())
                for token, index in zip(tokens[here], of_token)
            ]
        columns = columns_of(positions, None)
        if not after:
            return columns
        ids, values, _, own, _ = columns
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.where(ids < 0, -np.inf, np.log(np.where(ids < 0, 0, values))).astype(np.float32)
            return columns._replace(
                log_probs=values, sampled_log_probs=np.where(own == NULL_LOG_PROB, own, np.log(own))
            )


def sampling(settings: Mapping[str, Any]) -> Sampling:
    """Returns how the server made the log-probs.

    Args:
        settings: `generation_settings` of an answer.

    Returns:
        The sampling.

    Raises:
        ValueError: It decoded greedily, or the log-probs are raw and a sampler that sis.Sampling does not have changed
            the distribution.
    """
    samplers = settings["samplers"]

    def value(name: str, sampler: str, neutral: Any) -> Any:
        return settings[name] if sampler in samplers else neutral

    temperature = value("temperature", "temperature", 1.0)
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}: greedy decoding draws no tokens")
    processed = settings["post_sampling_probs"]
    for name, (sampler, neutral) in _OTHERS.items():
        found = settings.get(name, neutral)
        if found != neutral and (sampler is None or sampler in samplers) and not processed:
            raise ValueError(
                f"{name} is {found}: raw log-probs are not those of the draw; ask for 'post_sampling_probs'"
            )
    penalties = "penalties" if settings["repeat_last_n"] != 0 else "none of the samplers"
    return Sampling(
        "processed" if processed else "raw",
        temperature=temperature,
        top_p=value("top_p", "top_p", 1.0),
        top_k=max(value("top_k", "top_k", 0), 0),
        min_p=value("min_p", "min_p", 0.0),
        presence_penalty=value("presence_penalty", penalties, 0.0),
        frequency_penalty=value("frequency_penalty", penalties, 0.0),
        repetition_penalty=value("repeat_penalty", penalties, 1.0),
        logit_bias=bool(settings["logit_bias"]),
        grammar=bool(settings["grammar"]),
    )


def aligned(tokens: Sequence[int], listed: Sequence[int]) -> np.ndarray:
    """Finds the log-probs of each token: the server leaves out those of tokens that end within a character.

    Args:
        tokens: The T tokens of an answer.
        listed: The tokens whose log-probs it has, in the same order.

    Returns:
        int [T], the index in `listed` of each token; -1 if there is none, or more than one way to assign it.

    Raises:
        MalformedOutput: A listed token is not among the answer's.
    """
    first = _leftmost(tokens, listed)
    last = len(tokens) - 1 - _leftmost(tokens[::-1], listed[::-1])[::-1]
    of_token = np.full(len(tokens), -1)
    sure = np.flatnonzero(first == last)
    of_token[first[sure]] = sure
    return of_token


def _leftmost(tokens: Sequence[int], listed: Sequence[int]) -> np.ndarray:
    """Returns the index of each listed token, as small as their order allows. MalformedOutput if there is none."""
    found: List[int] = []
    for token in listed:
        try:
            found.append(tokens.index(token, found[-1] + 1 if found else 0))
        except ValueError:
            text = f"log-probs of token {token}, entry {len(found)}, which the answer doesn't have there"
            raise MalformedOutput(text) from None
    return np.array(found, int)
