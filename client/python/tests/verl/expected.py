"""verl's loss with SIS, computed in float64, sample by sample, by docs/math.md."""

import torch
from client.python.tests.engines.in_float64 import acceptance, accepted, of_rule

# Clips of verl's vanilla policy loss, in an actor's default configuration.
CLIP_LOW, CLIP_HIGH, CLIP_NEGATIVE = 0.8, 1.2, 3.0


def kept_logits(logits, top_p):
    """[T, V], those that top-p leaves out excluded."""
    ordered = logits.detach().softmax(-1).sort(dim=-1, descending=True)
    before = ordered.values.cumsum(-1) - ordered.values
    kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, ordered.indices, before < top_p)
    return logits.masked_fill(~kept, -1e4)


def gradients(
    model, samples, advantages, *, seed, draw, top_k, top_p=1.0, mass=1.0, rule=None, lost=(), temperature=1.0,
):  # fmt: skip
    """{parameter: gradient} of the token-mean loss, and the share of accepted tokens. advantages: per sample
    [at least its tokens]. With top_p the policies must be equal, and all tokens count as accepted. rule: An argument
    of of_rule, which replaces the clip. lost: Names of turns without a record."""
    double = type(model)(model.config).double()
    double.load_state_dict(model.state_dict())
    loss, count, as_current = 0.0, 0, 0
    for sample, advantage in zip(samples, advantages):
        length, start = len(sample.tokens), len(sample.prompt)
        logits = double(torch.tensor([sample.prompt + sample.tokens])).logits[0, start - 1 : -1] / temperature
        if top_p < 1:
            logits = kept_logits(logits, top_p)
        tokens = torch.tensor(sample.tokens)
        own = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        old = torch.tensor(sample.log_probs, dtype=torch.float64)
        a = torch.zeros_like(old)
        for turn in sample.turns:
            here = slice(turn.start, turn.start + len(turn.log_probs))
            every = torch.ones(1, len(turn.log_probs), dtype=torch.bool)
            here_accepted = every if top_p < 1 else accepted(
                [turn.name], [0], every, tokens[None, here], turn.log_probs[None].double(),
                logits.detach()[None, here], seed, draw, top_k, mass,
            )  # fmt: skip
            if turn.name in lost:
                continue
            if rule is not None:
                a[here] = acceptance(
                    every, tokens[None, here], turn.log_probs[None].double(), logits.detach()[None, here], top_k, mass
                )[0]
            else:
                old[here] = torch.where(here_accepted[0], own.detach()[here], old[here])
            as_current += int(here_accepted.sum())
        ratio, weight = (own - old).exp(), advantage[:length].double()
        terms = torch.maximum(-weight * ratio, -weight * ratio.clamp(CLIP_LOW, CLIP_HIGH))
        terms = torch.where(weight < 0, torch.minimum(terms, -weight * CLIP_NEGATIVE), terms)
        if rule is not None:
            terms = -of_rule(rule, ratio.detach(), a, weight) * weight * own
        mask = torch.tensor(sample.mask)
        loss = loss + (terms * mask).sum()
        count += int(mask.sum())
    (loss / count).backward()
    return {name: parameter.grad for name, parameter in double.named_parameters()}, as_current / count
