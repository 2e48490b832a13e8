"""On-policy distillation: a teacher looks at what the student wrote, and the student learns from the
teacher's most probable tokens. `python distillation.py HOST:PORT`

Teacher and student are tables of logits by the last token. In reality the teacher is an engine
somewhere else, asked for the log-probs of a prompt.
"""

import sys
import time

import numpy as np
import torch

import sis
import sis.torch

VOCABULARY, TOP_K, LENGTH, RESPONSES = 32, 8, 24, 16


def respond(policy):
    """Tokens [RESPONSES, LENGTH] that the policy draws, and those before them."""
    tokens = [torch.zeros(RESPONSES, dtype=torch.long)]
    for _ in range(LENGTH):
        tokens.append(torch.multinomial(policy[tokens[-1]].softmax(-1), 1)[:, 0])
    every = torch.stack(tokens, 1)
    return every[:, 1:], every[:, :-1]


def teach(client, run, teacher, names, tokens, before, step):
    """The teacher's side: what it thinks of the student's tokens."""
    entries = []
    for name, own, context in zip(names, tokens, before):
        log_probs = teacher[context].log_softmax(-1)
        top = log_probs.topk(TOP_K)
        of_own = log_probs.gather(1, own[:, None])[:, 0]
        record = sis.canonical(top.indices, top.values, own, of_own, TOP_K)
        entries += [sis.Block(name, 0, step, *record), sis.Seal(name, LENGTH)]
    client.append_many(run, entries, sampling=sis.Sampling("processed"))


def main(address):
    torch.manual_seed(0)
    teacher = torch.randn(VOCABULARY, VOCABULARY) * 2
    student = torch.zeros(VOCABULARY, VOCABULARY, requires_grad=True)
    optimizer = torch.optim.Adam([student], lr=0.3)
    with sis.Client(address) as client:
        run = client.create_run(
            f"distillation-{time.time_ns()}", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K,
            # The teacher's log-probs are a target: as it gave them.
            log_prob_encoding="float32",
        )  # fmt: skip
        for step in range(12):
            tokens, before = respond(student.detach())
            names = [f"{step}-{index}" for index in range(RESPONSES)]
            teach(client, run, teacher, names, tokens, before, step)

            batch = sis.torch.PaddedBatch(names, torch.ones_like(tokens))
            records = client.fetch_top_k(
                run, batch.slices, arrays=("ids", "log_probs", "sampled_ids"), lease_seconds=60
            )
            current = sis.torch.log_probs_at(records, batch.flat(student[before]))
            divergence = sis.torch.reverse_kl(records, current)
            optimizer.zero_grad()
            divergence.values.mean().backward()
            optimizer.step()
            client.release(run, names, [records.lease_id])
            print(
                f"step {step}: the teacher's tail {np.mean(divergence.teacher_tail.numpy()):.3f}, reverse KL, nats per "
                f"token: {divergence.values.mean().item():.4f}"
            )


if __name__ == "__main__":
    main(sys.argv[1])
