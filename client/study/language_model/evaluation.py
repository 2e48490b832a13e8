"""What a policy is worth on held-out problems: exactly, as it has one right response to each."""

import collections
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch

from client.study.language_model import task


class Evaluation(NamedTuple):
    # The probability of the right response at temperature 1, and the share of problems for which it
    # is the greedy one: means over problems.
    reward: float
    greedy: float


@torch.no_grad()
def evaluate(model: Any, tokenizer: Any, problems: Sequence[task.Problem]) -> Evaluation:
    """In bfloat16 over the model's own weights, as it is trained."""
    by_lengths: Dict[Tuple[int, int], List[List[int]]] = collections.defaultdict(list)
    for problem in problems:
        prompt = tokenizer.encode(problem["prompt"])
        response = tokenizer.encode(task.response(problem["answer"]))
        by_lengths[len(prompt), len(response)].append(prompt + response)
    reward = greedy = 0.0
    for (prompt_length, _), rows in by_lengths.items():
        tokens = torch.tensor(rows, device=model.device)
        right = tokens[:, prompt_length:]
        with torch.autocast(model.device.type, torch.bfloat16):
            logits = model(input_ids=tokens[:, :-1], logits_to_keep=right.shape[1]).logits
        log_probs = logits.float().log_softmax(-1)
        reward += log_probs.gather(2, right[..., None])[..., 0].sum(1).exp().sum().item()
        greedy += (log_probs.argmax(-1) == right).all(1).sum().item()
    return Evaluation(reward / len(problems), greedy / len(problems))
