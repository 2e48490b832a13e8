"""An agent with a tool, recorded while it works: several turns in one sequence, new weights in the
middle of it, and a turn that is dropped and taken again. `python agent.py HOST:PORT MODEL`

MODEL is a folder that transformers can load; its engine generates, and its weights are trained. The
tool stands for any other: it writes tokens that the policy did not generate.
"""

import asyncio
import dataclasses
import random
import sys
import time

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

import sis
import sis.torch
from sis.engines import Recorder
from sis.engines.transformers import TransformersAdapter

TOP_K, TURNS, TURN_TOKENS, TEMPERATURE = 20, 3, 24, 0.9


@dataclasses.dataclass
class Episode:
    name: str
    prompt: list
    # All after the prompt, and whether the policy generated it: the trainer's completion and mask.
    tokens: list = dataclasses.field(default_factory=list)
    mask: list = dataclasses.field(default_factory=list)

    def write(self, tokens, *, by_policy):
        self.tokens += tokens
        self.mask += [by_policy] * len(tokens)


class Engine:
    """The policy that samples: one request at a time, in a thread."""

    def __init__(self, model):
        self._model = model
        self._config = GenerationConfig(
            do_sample=True, temperature=TEMPERATURE, top_k=0, max_new_tokens=TURN_TOKENS, eos_token_id=2,
            pad_token_id=0, output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        self.adapter = TransformersAdapter(self._config)
        self._turn = asyncio.Lock()

    async def generate(self, episode):
        async with self._turn:
            return await asyncio.to_thread(self._generate, episode.prompt + episode.tokens)

    def _generate(self, context):
        ids = torch.tensor([context])
        output = self._model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=self._config)
        return self.adapter.rows(output, TOP_K)[0]


async def call_tool(vocabulary_size):
    await asyncio.sleep(0.01)
    return [random.randrange(3, vocabulary_size) for _ in range(random.randrange(2, 7))]


async def take_turn(engine, recorder, episode, *, last):
    output = await engine.generate(episode)
    recorder.add(episode.name, output, more=not last)
    episode.write(output.sampled_ids.tolist(), by_policy=True)


async def use_tool(recorder, episode, vocabulary_size):
    answer = await call_tool(vocabulary_size)
    recorder.skip(episode.name, len(answer))
    episode.write(answer, by_policy=False)


async def drop_a_turn(engine, episode):
    """A turn that leads nowhere. Recorded positions are final, so a turn is recorded once it is known to stay."""
    output = await engine.generate(episode)
    print(f"{episode.name}: dropped {len(output.sampled_ids)} tokens from position {len(episode.tokens)} on")


def logits_of(model, episodes):
    """Logits [B, T, V] of the completions, the tokens, and the mask [B, T]."""
    longest = max(len(episode.prompt) + len(episode.tokens) for episode in episodes)
    rows = [episode.prompt + episode.tokens for episode in episodes]
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    start = len(episodes[0].prompt)
    mask = torch.tensor([episode.mask + [False] * (longest - start - len(episode.mask)) for episode in episodes])
    # Padding stands behind everything else, so it needs no attention mask.
    return model(ids).logits[:, start - 1 : -1], ids[:, start:], mask


def update(model, optimizer, episodes):
    """Any step of training: the weights are others after it."""
    logits, tokens, mask = logits_of(model, episodes)
    chosen = logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    optimizer.zero_grad()
    (-(chosen * mask).sum() / mask.sum()).backward()
    optimizer.step()


async def main(address, path):
    torch.manual_seed(0)
    random.seed(0)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    vocabulary_size = model.config.vocab_size
    engine = Engine(model)
    episodes = [Episode(f"episode-{index}", [270, 443, 285, 264]) for index in range(6)]
    with sis.Client(address) as client:
        run = client.create_run(f"agent-{time.time_ns()}", seed=1, vocabulary_size=vocabulary_size, top_k=TOP_K)
        with Recorder(client, run, engine.adapter, policy_version=0) as recorder:
            for turn in range(TURNS):
                if turn == 1:
                    # The trainer has new weights, and episodes go on with them where they are.
                    update(model, optimizer, episodes)
                    client.advance_version(run, 1)
                    recorder.policy_version = 1
                    await drop_a_turn(engine, episodes[0])
                last = turn == TURNS - 1
                await asyncio.gather(*(take_turn(engine, recorder, each, last=last) for each in episodes))
                if not last:
                    await asyncio.gather(*(use_tool(recorder, each, vocabulary_size) for each in episodes))

        update(model, optimizer, episodes)
        client.advance_version(run, 2)
        names = [episode.name for episode in episodes]
        with torch.no_grad():
            logits, tokens, mask = logits_of(model, episodes)
        batch = sis.torch.PaddedBatch(names, mask)
        records = client.fetch_top_k(run, batch.slices, log_probs=False, keep_seconds=60)
        own = batch.flat(tokens)
        gathered = sis.torch.gather(records, batch.flat(logits), own, temperature=TEMPERATURE)
        # With sampled_ids the service refuses tokens that are not the recorded ones.
        options = sis.EvaluateOptions(mask=batch.mask, sampled_ids=own)
        evaluation = client.evaluate(
            run, records, draw=0, options=options, outputs=("decisions",), **gathered._asdict()
        )
        accepted = batch.padded(sis.torch.tensor(evaluation.accepted), False)
        for episode, row in zip(episodes, accepted):
            # A dot is a token that a tool wrote.
            marks = ["+" if kept else "-" for kept in row.tolist()]
            print(f"{episode.name}: {''.join(m if own else '.' for m, own in zip(marks, episode.mask))}")
        totals = evaluation.totals
        print(f"{totals.scored} tokens scored, {totals.masked} of tools, {totals.missing} missing")
        for age in client.list_steps(run, draws=[0])[0].ages:
            print(f"{age.name} versions behind: {age.scored} tokens, {age.accept_rate:.1%} accepted")
        print(f"in all accepted {totals.accept_rate:.1%}, D {totals.mean_d:.4f}, D_SIS {totals.mean_d_sis:.4f} nats a token")
        client.release(run, names)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
