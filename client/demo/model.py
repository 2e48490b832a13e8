"""A small causal transformer, and how to sample from it."""
import torch
from torch import nn
from torch.nn import functional

from client.demo import task as tasks


class Layer(nn.Module):
    """Pre-norm causal self-attention and a feed-forward network."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x, past=None):
        """x [B, T, width] after `past`, the keys and values of the tokens before; returns x and
        both prolonged."""
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if past is not None:
            key = torch.cat([past[0], key], dim=2)
            value = torch.cat([past[1], value], dim=2)
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        if length > 1:
            future = torch.ones(length, key.shape[2], dtype=torch.bool).triu(key.shape[2] - length + 1)
            scores = scores.masked_fill(future, float("-inf"))
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        x = x + self.down(functional.gelu(self.up(self.feed_forward_norm(x))))
        return x, (key, value)


class Transformer(nn.Module):
    def __init__(self, vocabulary_size, context, width=64, layers=2, heads=4):
        super().__init__()
        self.token = nn.Embedding(vocabulary_size, width)
        self.position = nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary_size)

    def forward(self, tokens, past=None):
        """Log-probs of the next token, float32 [B, T, vocabulary], and the keys and values for
        `past`.

        tokens are int64 [B, T], those that follow the ones `past` was computed from.
        """
        start = 0 if past is None else past[0][0].shape[2]
        x = self.token(tokens) + self.position(torch.arange(start, start + tokens.shape[1]))
        present = []
        for index, layer in enumerate(self.layers):
            x, keys_values = layer(x, None if past is None else past[index])
            present.append(keys_values)
        return self.head(self.norm(x)).log_softmax(dim=-1), present

    def response_log_probs(self, prompts, responses):
        """float32 [B, T, vocabulary]: the distributions that the T response tokens were, or would
        be, sampled from."""
        log_probs, _ = self(torch.cat([prompts, responses[:, :-1]], dim=1))
        return log_probs[:, prompts.shape[1] - 1:]


def of_task(task):
    """The demonstration's model, with random weights."""
    return Transformer(tasks.VOCABULARY_SIZE, task.prompt_length + task.response_length)


@torch.no_grad()
def sample(model, prompts, length, generator):
    """Samples `length` tokens after each prompt, at temperature 1 and without any filter.

    Returns responses int64 [B, length] and the log-probs they were sampled from, float32 [B,
    length, vocabulary].
    """
    tokens, past, responses, behaviour = prompts, None, [], []
    for _ in range(length):
        log_probs, past = model(tokens, past)
        behaviour.append(log_probs[:, -1])
        tokens = torch.multinomial(behaviour[-1].exp(), 1, generator=generator)
        responses.append(tokens)
    return torch.cat(responses, dim=1), torch.stack(behaviour, dim=1)
