"""A small transformer, what it learns to add, and an engine that computes with rounded weights."""

import copy
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

# Tokens: the digits 0 to 9, and these. Answers are written with the last digit first.
PLUS, EQUALS, STOP = 10, 11, 12
VOCABULARY = 13


class Task:
    """Sums of two numbers of `digits` digits each."""

    def __init__(self, digits):
        self._digits = digits
        self.prompt = 2 * digits + 2
        # With the stop token.
        self.answer = digits + 2

    def draw(self, count, generator):
        """Returns prompts int64 [count, prompt] and right answers [count, answer], padded with STOP."""
        base = 10**self._digits
        left, right = torch.randint(base, (2, count), generator=generator)
        prompts = torch.cat(
            [self._written(left, self._digits), torch.full((count, 1), PLUS), self._written(right, self._digits),
             torch.full((count, 1), EQUALS)], dim=1,
        )  # fmt: skip
        answers = self._written(left + right, self._digits + 1)
        answers[left + right < base, -1] = STOP
        return prompts, functional.pad(answers, (0, 1), value=STOP)

    @staticmethod
    def _written(numbers, digits):
        return torch.stack([numbers // 10**digit % 10 for digit in range(digits)], dim=1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self._heads = heads
        self._norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self._into, self._out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self._up, self._down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        parts = self._into(self._norms[0](x)).unflatten(2, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5 + mask
        x = x + self._out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        return x + self._down(functional.relu(self._up(self._norms[1](x))))


class Transformer(nn.Module):
    def __init__(self, positions, generator, width=64, heads=4, layers=2):
        """generator: of the initial weights."""
        super().__init__()
        self._tokens = nn.Embedding(VOCABULARY, width)
        self._positions = nn.Parameter(torch.zeros(positions, width))
        self._blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self._norm, self._head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.dim() == 2:
                    std = {"_tokens.weight": 1.0, "_positions": 0.02}.get(name, 0.5 / weight.shape[1] ** 0.5)
                    weight.normal_(std=std, generator=generator)
                elif name.endswith("bias"):
                    weight.zero_()
        self.register_buffer("_mask", torch.full((positions, positions), -torch.inf).triu(1), persistent=False)

    def forward(self, tokens):
        """Returns logits [B, T, VOCABULARY] of the tokens after each of `tokens` [B, T]."""
        length = tokens.shape[1]
        x = self._tokens(tokens) + self._positions[:length]
        for block in self._blocks:
            x = block(x, self._mask[:length, :length])
        return self._head(self._norm(x))


@torch.no_grad()
def rounded(model, bits):
    """Returns a copy whose matrices have weights of `bits` bits, with one scale for each row."""
    made = copy.deepcopy(model)
    for module in made.modules():
        if isinstance(module, nn.Linear):
            scale = module.weight.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
            module.weight.copy_((module.weight / scale).round() * scale)
    return made


@torch.no_grad()
def generate(model, prompts, length, generator=None):
    """Returns what transformers' `generate` returns: sequences [B, prompt + T], and scores, T times [B, VOCABULARY].

    generator: of the draws. None decodes greedily. T is at most `length`; tokens after STOP mean nothing.
    """
    tokens, scores = prompts, []
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    while len(scores) < length and not ended.all():
        scores.append(model(tokens)[:, -1])
        if generator is None:
            drawn = scores[-1].argmax(1)
        else:
            drawn = torch.multinomial(scores[-1].softmax(-1), 1, generator=generator)[:, 0]
        ended |= drawn == STOP
        tokens = torch.cat([tokens, drawn[:, None]], dim=1)
    return SimpleNamespace(sequences=tokens, scores=scores)
