"""Hugging Face transformers: what `generate` returns."""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np

from sis.engines._adapter import Adapter, Columns, MalformedOutput, Piece, Told
from sis._run import Sampling


class TransformersAdapter(Adapter):
    """Reads the rows of generate(..., return_dict_in_generate=True, output_scores=True), which `rows` takes apart."""

    cumulative = True

    def __init__(self, generation_config: Any) -> None:
        """Makes the adapter.

        Args:
            generation_config: The GenerationConfig that `generate` used, by default model.generation_config.

        Raises:
            ValueError: It decodes greedily or by beams.
        """
        self._config = generation_config
        self.sampling = sampling(generation_config)

    def rows(self, output: Any, top_k: int) -> List[Columns]:
        """Returns the sequences of a batch, each up to its first end-of-sequence token.

        Args:
            output: What `generate` returned.
            top_k: K, the number of most probable tokens to list.

        Returns:
            The adapter's outputs, one per sequence.

        Raises:
            ValueError: The output has no scores.
        """
        from sis.engines._steps import Steps

        if getattr(output, "scores", None) is None:
            raise ValueError(
                "the output has no scores: generate needs output_scores=True, return_dict_in_generate=True"
            )
        sampled = output.sequences[:, output.sequences.shape[1] - len(output.scores) :]
        steps = Steps(top_k)
        for scores, tokens in zip(output.scores, sampled.T):
            steps.add(scores)
            steps.draw(tokens)
        drawn = sampled.cpu().numpy()
        return steps.columns([tokens[:end] for tokens, end in zip(drawn, self._lengths(drawn))])

    def _lengths(self, sampled: np.ndarray) -> List[int]:
        eos = self._config.eos_token_id
        if eos is None:
            return [sampled.shape[1]] * len(sampled)
        ended = np.isin(sampled, eos)
        return np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, sampled.shape[1]).tolist()

    def told(self, output: Columns) -> Told:
        return Told(len(output.sampled_ids), "finished")

    def columns(self, pieces: Sequence[Piece]) -> Columns:
        for piece in pieces:
            lengths = list(map(len, piece.output[:4]))
            if len(set(lengths)) > 1:
                raise MalformedOutput(f"{', '.join(Columns._fields[:4])} have {lengths} positions")
        parts = [[array[piece.start : piece.stop] for array in piece.output[:4]] for piece in pieces]
        ids, log_probs, sampled_ids, sampled_log_probs = map(np.concatenate, zip(*parts))
        return Columns(ids, log_probs, sampled_ids, sampled_log_probs, None)


def sampling(config: Any) -> Sampling:
    """Returns how scores are made.

    Args:
        config: The GenerationConfig.

    Returns:
        The sampling.

    Raises:
        ValueError: It decodes greedily or by beams.
    """
    if not config.do_sample:
        raise ValueError("do_sample is not set: greedy decoding draws no tokens")
    if (config.num_beams or 1) != 1:
        raise ValueError(f"num_beams is {config.num_beams}: beam search does not draw from the policy")
    biases = ("bad_words_ids", "sequence_bias", "suppress_tokens", "begin_suppress_tokens", "no_repeat_ngram_size")
    optional = {name: getattr(config, name, None) for name in ("top_p", "top_k", "min_p", "repetition_penalty")}
    return Sampling(
        "processed",
        temperature=1.0 if config.temperature is None else config.temperature,
        logit_bias=any(getattr(config, name, None) for name in biases),
        **{name: value for name, value in optional.items() if value is not None},
    )
