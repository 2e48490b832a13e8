"""Pairs of recordings, with a fault made on purpose or none.

Each case makes B of A's distributions, with noise of the size of bfloat16 on its logits unless it says otherwise, and
names what `sisctl compare` must find. Beyond the listed tokens a recording's distribution is not known: its mass counts
as tokens that are each as probable as the last one listed, so temperatures and biases are exact up to how that mass is
spread. The synthetic model lists all tokens.
"""

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable

from tests.compare.recordings import LISTED, Base, Position

UNNAMED = 15_000_000  # ids from here on are no token's of the recordings
NOTHING = -9999.0  # what engines write for minus infinity


@dataclasses.dataclass(frozen=True)
class Case:
    fault: str  # the check's name; "" if there is none
    made: str  # for people
    make: Callable[[Base, random.Random], tuple[list, list]]
    responses: tuple[int, ...] = ()  # the only ones that have it; none: all
    or_else: str = ""  # another name that fits as well


def change(position, new_log_prob):
    """Another logit for each token, and what normalises them."""
    mass = sum(math.exp(value) for _, value in position.top)
    least = position.top[-1][1]
    tail = max(0.0, 1 - mass) / math.exp(least)  # how many tokens
    changed = [(i, new_log_prob(i, value)) for i, value in position.top]
    total = sum(math.exp(value) for _, value in changed) + tail * math.exp(new_log_prob(-1, least))
    shift = math.log(total)
    top = sorted(((i, value - shift) for i, value in changed), key=lambda t: -t[1])
    listed = dict(top)
    log_prob = position.log_prob
    if position.token in listed:
        log_prob = listed[position.token]
    elif log_prob > NOTHING:
        log_prob = min(0.0, new_log_prob(position.token, log_prob) - shift)
        if log_prob > top[-1][1]:  # it is now among the most probable
            top = sorted([*top[:-1], (position.token, log_prob)], key=lambda t: -t[1])
    return Position(position.token, log_prob, top)


def each(responses, function, only=None):
    """function(position) of every position, or of those of some responses."""
    return [
        [function(position) for position in response] if only is None or number in only else response
        for number, response in enumerate(responses)
    ]


def noisy(base, rng, scale=1.0):
    def differ(position):
        return change(position, lambda _, value: value + scale * rng.choice(base.noise))

    return each(base.responses, differ)


def flip(position, rng):
    """Another expert has computed it: logits move by a nat or so."""
    return change(position, lambda _, value: value + rng.gauss(0, 1.5))


def at(temperature):
    return lambda position: change(position, lambda _, value: value / temperature)


def biased(biases):
    """Adds `biases` by token. A token that falls below the least listed one is replaced by an unnamed token."""

    def one(position):
        new = change(position, lambda i, value: value + biases.get(i, 0.0))
        floor = min((value for i, value in new.top if i not in biases), default=NOTHING)
        top = [t for t in new.top if t[0] not in biases or t[1] >= floor]
        missing = len(new.top) - len(top)
        rest = 1 - sum(math.exp(value) for _, value in top)
        floor = min(floor, math.log(max(1e-9, rest / (missing + 1))))
        top += [(UNNAMED + n, floor) for n in range(missing)]
        return Position(new.token, new.log_prob, top)

    return one


def filtered(keep):
    """Renormalises the tokens that keep(list) leaves. The others become practically impossible."""

    def one(position):
        kept, mass = keep(position.top)
        shift = math.log(mass)
        top = [(i, value - shift) for i, value in kept]
        return Position(position.token, dict(top).get(position.token, NOTHING), top)

    return one


def top_p(p):
    def keep(top):
        mass, kept = 0.0, []
        for i, value in top:
            kept.append((i, value))
            mass += math.exp(value)
            if mass >= p:
                return kept, mass
        return kept, max(p, mass)  # more is left than is listed

    return keep


def top_k(k):
    return lambda top: (top[:k], sum(math.exp(value) for _, value in top[:k]))


def min_p(share):
    def keep(top):
        kept = [t for t in top if t[1] >= top[0][1] + math.log(share)]
        return kept, sum(math.exp(value) for _, value in kept)

    return keep


def moved(responses, shift, lists=True, log_probs=True, only=None):
    """Values of the position `shift` further on."""
    result = []
    for number, response in enumerate(responses):
        if only is not None and number not in only:
            result.append(response)
            continue
        last = len(response) - 1
        sources = [response[min(last, max(0, t + shift))] for t in range(last + 1)]
        new = []
        for own, other in zip(response, sources, strict=True):
            log_prob = own.log_prob
            if log_probs:
                log_prob = dict(other.top).get(own.token, NOTHING) if lists else other.log_prob
            new.append(Position(own.token, log_prob, other.top if lists else own.top))
        result.append(new)
    return result


def elsewhere(responses, rng, chosen):
    """Where chosen(response, position), values of another context: those of a position far away."""
    positions = [position for response in responses for position in response]
    result = []
    for number, response in enumerate(responses):
        new = []
        for t, own in enumerate(response):
            if chosen(number, t, len(response)):
                other = rng.choice(positions)
                own = Position(own.token, dict(other.top).get(own.token, other.top[-1][1] - 2), other.top)
            new.append(own)
        result.append(new)
    return result


def punished(responses, penalty):
    result = []
    for response in responses:
        seen, new = set(), []
        for position in response:
            new.append(change(position, lambda i, value, seen=seen: value - penalty * (i in seen)))
            seen.add(position.token)
        result.append(new)
    return result


def frequent(responses, rank):
    """The token that most lists have, the next one, ..."""
    listed = Counter(i for response in responses for position in response for i, _ in position.top[:5])
    return listed.most_common(rank + 1)[rank][0]


def renumbered(responses, number):
    return each(responses, lambda p: Position(number(p.token), p.log_prob, [(number(i), v) for i, v in p.top]))


def cut(responses, k=LISTED):
    return each(responses, lambda p: Position(p.token, p.log_prob, p.top[:k]))


def moved_by(nats, rng):
    return lambda position: change(position, lambda _, value: value + rng.gauss(0, nats))


def _of(function):
    """B is function(what another engine records, rng)."""
    return lambda base, rng: (base.responses, function(noisy(base, rng), rng))


def _swap(responses, i, j):
    responses = list(responses)
    responses[i], responses[j] = responses[j], responses[i]
    return responses


def _values_of(responses, i, j):
    """Response i with the values of response j, and the other way round; tokens stay."""
    new = list(responses)
    for here, there in ((i, j), (j, i)):
        new[here] = [
            Position(own.token, other.log_prob, other.top)
            for own, other in zip(responses[here], responses[there], strict=False)
        ]
    return new


def _few(base, rng, share, noise):
    return each(noisy(base, rng, noise), lambda p: flip(p, rng) if rng.random() < share else p)


def _samples(base, rng):
    """Each side samples one of three answers to a prompt, which part at their first token."""

    def sample(responses):
        top = responses[0][0].top
        answers = [[Position(*top[i], top), *responses[i][1:]] for i in range(3)]
        return [rng.choice(answers) for _ in responses]

    return sample(base.responses), sample(noisy(base, rng))


ONE, TWO = (2,), (1, 4)

CASES = [
    # Noise
    Case("", "nothing", lambda base, rng: (base.responses, base.responses)),
    Case("", "noise of float32", lambda base, rng: (base.responses, noisy(base, rng, 1e-4))),
    Case("", "noise of bfloat16", lambda base, rng: (base.responses, noisy(base, rng))),
    Case("", "noise on both sides", lambda base, rng: (noisy(base, rng), noisy(base, rng))),
    Case("", "noise of 4 bits", lambda base, rng: (base.responses, noisy(base, rng, 2.5))),
    Case("", "noise, lists of 3 and 5", lambda base, rng: (cut(base.responses, 3), cut(noisy(base, rng), 5))),
    Case("", "noise, B without lists", _of(lambda b, rng: each(b, lambda p: Position(p.token, p.log_prob, [])))),
    Case("", "noise, B ends sooner", _of(lambda b, rng: [response[: 2 * len(response) // 3] for response in b])),
    # Tokens
    Case("token_numbers", "ids are 5 higher", _of(lambda b, rng: renumbered(b, lambda i: i + 5))),
    Case("tokens_shifted", "one token more at the start", _of(lambda b, rng: [response[1:] for response in b])),
    Case("tokens_shifted", "three tokens more at the start", _of(lambda b, rng: [response[3:] for response in b])),
    Case(
        "tokens_shifted", "one token more in one response",
        _of(lambda b, rng: [r[1:] if i in ONE else r for i, r in enumerate(b)]), ONE,
    ),
    Case("order", "two responses swapped", _of(lambda b, rng: _swap(b, *TWO)), TWO),
    Case("order", "all in another order", _of(lambda b, rng: b[1:] + b[:1])),
    Case("order", "values of two responses swapped", _of(lambda b, rng: _values_of(b, *TWO)), TWO),
    # Positions
    Case("lists_shifted", "one token later", _of(lambda b, rng: moved(b, -1))),
    Case("lists_shifted", "one token sooner", _of(lambda b, rng: moved(b, 1))),
    Case("lists_shifted", "later, log-probs in place", _of(lambda b, rng: moved(b, -1, log_probs=False))),
    Case("lists_shifted", "sooner, log-probs in place", _of(lambda b, rng: moved(b, 1, log_probs=False))),
    Case("lists_shifted", "in one response", _of(lambda b, rng: moved(b, 1, only=ONE)), ONE),
    Case("sampled_shifted", "one token later", _of(lambda b, rng: moved(b, -1, lists=False))),
    Case("sampled_shifted", "one token sooner", _of(lambda b, rng: moved(b, 1, lists=False))),
    Case("sampled_shifted", "in one response", _of(lambda b, rng: moved(b, 1, lists=False, only=ONE)), ONE),
    Case(
        "sampled_column", "the most probable token's",
        _of(lambda b, rng: each(b, lambda p: Position(p.token, p.top[0][1], p.top))),
    ),
    Case("range", "the first ten positions", _of(lambda b, rng: elsewhere(b, rng, lambda i, t, n: t < 10))),
    Case("range", "from two thirds on", _of(lambda b, rng: elsewhere(b, rng, lambda i, t, n: 3 * t >= 2 * n))),
    Case("range", "the first ten of one response",
         _of(lambda b, rng: elsewhere(b, rng, lambda i, t, n: t < 10 and i in ONE)), ONE),
    # Kinds
    Case("temperature", "0.7", _of(lambda b, rng: each(b, at(0.7)))),
    Case("temperature", "0.9", _of(lambda b, rng: each(b, at(0.9)))),
    Case("temperature", "1.3", _of(lambda b, rng: each(b, at(1.3)))),
    Case("temperature", "0.7 in one response", _of(lambda b, rng: each(b, at(0.7), ONE)), ONE),
    Case("temperature", "1.5 in two responses", _of(lambda b, rng: each(b, at(1.5), TWO)), TWO),
    Case("filter", "top-p 0.9", _of(lambda b, rng: each(b, filtered(top_p(0.9))))),
    Case("filter", "top-p 0.99", _of(lambda b, rng: each(b, filtered(top_p(0.99))))),
    Case("filter", "top-k 3", _of(lambda b, rng: each(b, filtered(top_k(3))))),
    Case("filter", "min-p 0.1", _of(lambda b, rng: each(b, filtered(min_p(0.1))))),
    Case("filter", "top-p 0.9 in one response", _of(lambda b, rng: each(b, filtered(top_p(0.9)), ONE)), ONE),
    Case("penalty", "presence 0.7", _of(lambda b, rng: punished(b, 0.7))),
    Case("penalty", "presence 1.5", _of(lambda b, rng: punished(b, 1.5))),
    Case("bias", "+1 on one token", _of(lambda b, rng: each(b, biased({frequent(b, 0): 1.0})))),
    Case("bias", "-1.5 on three tokens",
         _of(lambda b, rng: each(b, biased({frequent(b, i): -1.5 for i in (0, 1, 2)})))),
    Case("bias", "-100 on one token", _of(lambda b, rng: each(b, biased({frequent(b, 0): -100.0})))),
    # Sizes
    Case("outliers", "4%, noise of float32", lambda base, rng: (base.responses, _few(base, rng, 0.04, 1e-3))),
    Case("outliers", "8%, noise of float32", lambda base, rng: (base.responses, _few(base, rng, 0.08, 1e-3))),
    Case("outliers", "6%, noise of bfloat16", lambda base, rng: (base.responses, _few(base, rng, 0.06, 0.3))),
    Case("weights", "noise tenfold that of 4 bits", lambda base, rng: (base.responses, noisy(base, rng, 25))),
    Case("weights", "logits moved by a nat", _of(lambda b, rng: each(b, moved_by(1, rng)))),
    Case("weights", "another context", _of(lambda b, rng: elsewhere(b, rng, lambda i, t, n: True))),
    Case("weights", "another context in one response",
         _of(lambda b, rng: elsewhere(b, rng, lambda i, t, n: i in ONE)), ONE),
    Case("weights", "logits of one response moved by a nat",
         _of(lambda b, rng: each(b, moved_by(1, rng), ONE)), ONE, "uneven"),
    Case("uneven", "0.2 nats in one response, else nothing",
         lambda base, rng: (base.responses, each(base.responses, moved_by(0.2, rng), ONE)), ONE),
    Case("", "both sides sample, of few answers", _samples),
]  # fmt: skip
