"""Which tokens are accepted, computed anew: in float64, from logits, by docs/math.md."""

import numpy as np
import torch
from tests.reference import numerics


def accepted(names, starts, mask, tokens, behaviour, current, seed, draw, top_k, mass=1.0):
    """bool [B, T]. behaviour, current: float64 [B, T, V], logits of the tokens; starts: columns of position 0.
    mass: of the run."""
    q, p = behaviour.log_softmax(-1), current.log_softmax(-1)
    made = torch.zeros(mask.shape, dtype=torch.bool)
    for row, (name, start) in enumerate(zip(names, starts)):
        key = numerics.sequence_key(seed, 0, name)
        for column in mask[row].nonzero()[:, 0].tolist():
            values, kept = q[row, column].topk(top_k)
            kept = kept[values.exp().cumsum(0) - values.exp() < mass]
            ratios = (p[row, column] - q[row, column]).exp()
            token = tokens[row, column]
            if token in kept:
                position = np.asarray([column - start], np.uint32)
                uniform = int(numerics.uniforms(key, position, draw)[0]) / 2**32
                made[row, column] = uniform < ratios[token] / ratios[kept].max()
    return made
