"""What a teacher thinks of the tokens that a student generated, of engines that serve one
(docs/uses.md).

A teacher is a function of prompts and responses, token ids of its own vocabulary, one list per
sequence, and of K: it returns a Scored per response. Its log-probs are raw ones, of temperature 1:
Sampling("raw").
"""

from __future__ import annotations

import http.client
import json
import math
import urllib.error
import urllib.request
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from sis import entries
from sis.engines.lists import JSON_MINUS_INFINITY, padded, stretches
from sis.top_k import TopK, canonical

Tokens = Sequence[int]


class Scored(NamedTuple):
    """Of the T tokens of a response."""

    # bool [T]: of which the teacher says anything.
    present: np.ndarray
    # Of those that are present; the response's own token is the "sampled" one.
    record: TopK

    def blocks(self) -> List[Tuple[int, TopK]]:
        """Stretches of positions that are present, each with the first of them."""
        made = []
        taken = 0
        for first, last in stretches(self.present):
            made.append((first, TopK(*(array[taken : taken + last - first] for array in self.record))))
            taken += last - first
        return made

    def entries(self, name: str, policy_version: int = 0) -> List[entries.AppendEntry]:
        """What Client.append_many takes."""
        made = [entries.Block(name, first, policy_version, *record) for first, record in self.blocks()]
        return [*made, entries.Seal(name, len(self.present))]


Teacher = Callable[[Sequence[Tokens], Sequence[Tokens], int], List[Scored]]


class VllmTeacher:
    """Of a vllm.LLM, started with max_logprobs=-1, or K at least."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def __call__(self, prompts: Sequence[Tokens], responses: Sequence[Tokens], top_k: int) -> List[Scored]:
        import vllm

        # It generates a token at least.
        params = vllm.SamplingParams(max_tokens=1, prompt_logprobs=top_k, detokenize=False)
        asked = [{"prompt_token_ids": [*prompt, *response]} for prompt, response in zip(prompts, responses)]
        outputs = self._llm.generate(asked, params, use_tqdm=False)
        return [of_vllm(output.prompt_logprobs, response, top_k) for output, response in zip(outputs, responses)]


class VllmServerTeacher:
    """Of vLLM's OpenAI server, started with --max-logprobs -1, or K at least."""

    def __init__(self, address: str, model: str, timeout: float = 600) -> None:
        """`address`: http://HOST:PORT. model: as the server calls it. timeout: seconds, of a call."""
        self._address, self._model, self._timeout = address, model, timeout

    def __call__(self, prompts: Sequence[Tokens], responses: Sequence[Tokens], top_k: int) -> List[Scored]:
        asked = {
            "model": self._model,
            "prompt": [[*prompt, *response] for prompt, response in zip(prompts, responses)],
            "max_tokens": 1,
            "prompt_logprobs": top_k,
        }
        answer = _posted(f"{self._address}/v1/completions", asked, self._timeout)
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        return [of_vllm(choice["prompt_logprobs"], response, top_k) for choice, response in zip(choices, responses)]


class LlamaCppTeacher:
    """Of llama.cpp's server, which tells nothing of prompts: it is asked once per token, with those before
    it as the prompt, which it keeps. Tokens that end within a character are not present: it tells nothing
    of them."""

    def __init__(self, address: str, timeout: float = 600) -> None:
        """`address`: http://HOST:PORT. timeout: seconds, of a call."""
        self._address, self._timeout = address, timeout

    def __call__(self, prompts: Sequence[Tokens], responses: Sequence[Tokens], top_k: int) -> List[Scored]:
        return [self._scored(prompt, response, top_k) for prompt, response in zip(prompts, responses)]

    def _scored(self, prompt: Tokens, response: Tokens, top_k: int) -> Scored:
        answers = []
        for place, token in enumerate(response):
            asked = {
                "prompt": [*prompt, *response[:place]], "n_predict": 1, "n_probs": top_k, "samplers": ["top_k"], "top_k": 1,
                # It draws this token, and the raw log-probs are as without.
                "logit_bias": [[token, 1e4]], "return_tokens": True, "cache_prompt": True,
            }  # fmt: skip
            answers.append(_posted(f"{self._address}/completion", asked, self._timeout))
        return of_llama_cpp(answers, response, top_k)


def of_vllm(prompt_logprobs: Optional[Sequence[Any]], response: Tokens, top_k: int) -> Scored:
    """`prompt_logprobs`: what vLLM told of a prompt that ends with the response, asked with
    prompt_logprobs=top_k: of a RequestOutput, or of a choice in the JSON of its server. ValueError if it
    is of another prompt."""
    if prompt_logprobs is None:
        raise ValueError("there are no prompt_logprobs: ask for them")
    if len(prompt_logprobs) <= len(response):
        raise ValueError(
            f"prompt_logprobs are of {len(prompt_logprobs)} tokens, must be of a prompt and the response's {len(response)}"
        )
    own = np.asarray(response, np.int32)
    # In JSON ids are text.
    listed: List[Dict[int, float]] = [
        {int(token): _log_prob(told) for token, told in prompt_logprobs[place].items()}
        for place in range(len(prompt_logprobs) - len(own), len(prompt_logprobs))
    ]
    for place, (token, told) in enumerate(zip(own.tolist(), listed)):
        if token not in told:
            raise ValueError(f"prompt_logprobs, position {place} of the response: token {token} is not there")
    # One column more than was asked for: it is empty where the response's token is among those.
    ids, values = padded(listed, listed, (told.values() for told in listed), top_k + 1)
    values[values <= JSON_MINUS_INFINITY] = -np.inf
    of_own = np.asarray([told[token] for token, told in zip(own.tolist(), listed)], np.float32)
    of_own[of_own <= JSON_MINUS_INFINITY] = -np.inf
    return Scored(np.ones(len(own), bool), canonical(ids, values, own, of_own, top_k, "any"))


def _log_prob(told: Any) -> float:
    return told["logprob"] if isinstance(told, Mapping) else told.logprob


def of_llama_cpp(answers: Sequence[Mapping[str, Any]], response: Tokens, top_k: int) -> Scored:
    """`answers`: one of /completion per token of the response, as LlamaCppTeacher asks for them."""
    told = [(answer.get("completion_probabilities") or [{}])[0] for answer in answers]
    present = np.asarray(
        [one.get("id") == token and math.isfinite(one["logprob"]) for one, token in zip(told, response)], bool
    )
    told = [one for one, there in zip(told, present) if there]
    tops = [one["top_logprobs"] for one in told]
    ids, values = padded(
        tops,
        ([top["id"] for top in listed] for listed in tops),
        ([top["logprob"] for top in listed] for listed in tops),
        top_k,
    )
    own = np.asarray(response, np.int32)[present]
    of_own = np.asarray([one["logprob"] for one in told], np.float32)
    return Scored(present, canonical(ids, values, own, of_own, top_k))


def _posted(address: str, body: Mapping[str, Any], timeout: float) -> Any:
    """The JSON of an answer. RuntimeError with what the server says if it refuses."""
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{address}: {error.code}: {error.read().decode(errors='replace')}") from error
    except (OSError, http.client.HTTPException) as error:
        raise RuntimeError(f"{address}: no answer: {error}; is the teacher up?") from error
