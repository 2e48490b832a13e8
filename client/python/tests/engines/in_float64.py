"""Computes decisions and weights of tokens in float64 from logits, by docs/math.md and docs/algorithms.md."""

import numpy as np
import torch
from tests.reference import numerics


def acceptance(mask, tokens, behaviour, current, top_k, mass=1.0):
    """float64 [B, T], the acceptance probabilities. behaviour, current: float64 [B, T, V], logits of the tokens;
    mass: of the run."""
    q, p = behaviour.log_softmax(-1), current.log_softmax(-1)
    made = torch.zeros(mask.shape, dtype=torch.float64)
    for row, column in mask.nonzero().tolist():
        values, kept = q[row, column].topk(top_k)
        kept = kept[values.exp().cumsum(0) - values.exp() < mass]
        ratios = (p[row, column] - q[row, column]).exp()
        token = tokens[row, column]
        if token in kept:
            made[row, column] = ratios[token] / ratios[kept].max()
    return made


def accepted(names, starts, mask, tokens, behaviour, current, seed, draw, top_k, mass=1.0):
    """bool [B, T]. As acceptance; starts: columns of position 0."""
    probabilities = acceptance(mask, tokens, behaviour, current, top_k, mass)
    made = torch.zeros(mask.shape, dtype=torch.bool)
    for row, (name, start) in enumerate(zip(names, starts)):
        key = numerics.sequence_key(seed, 0, name)
        for column in mask[row].nonzero()[:, 0].tolist():
            position = np.asarray([column - start], np.uint32)
            uniform = int(numerics.uniforms(key, position, draw)[0]) / 2**32
            made[row, column] = uniform < probabilities[row, column]
    return made


def of_rule(rule, ratio, a, advantages):
    """float64, of one shape with all these: the coefficients of damped truncation, or of soft acceptance with
    EXPECTED weights. ratio: current / behaviour."""
    outward = ((ratio > 1) & (advantages > 0)) | ((ratio < 1) & (advantages < 0))
    weight = {"damped_truncation": torch.where(ratio > 1, 1.0, ratio), "soft_acceptance": a + (1 - a) * ratio}[rule]
    return torch.where(outward, weight * a, weight)


def decided(names, starts, mask, tokens, behaviour, current, seed, draw, top_k, advantages, rule=None):
    """float64 [B, T] each: the log-ratios and advantages of a loss with decisions, or with a rule instead; bool [B, T]:
    which tokens are accepted. As accepted; current has gradients."""
    behaviour = behaviour.detach()
    taken = accepted(names, starts, mask, tokens, behaviour, current.detach(), seed, draw, top_k)
    own, old = (values.log_softmax(-1).gather(-1, tokens[..., None])[..., 0] for values in (current, behaviour))
    if rule is None:
        return own - torch.where(taken, own.detach(), old), advantages, taken
    a = acceptance(mask, tokens, behaviour, current.detach(), top_k)
    return own - own.detach(), advantages * of_rule(rule, (own - old).detach().exp(), a, advantages), taken


def distance(gradients, exact):
    """The largest difference, as a share of the largest value."""
    largest = max(gradient.abs().max().item() for gradient in exact)
    return max((a - b).abs().max().item() for a, b in zip(gradients, exact, strict=True)) / largest
