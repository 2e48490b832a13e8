"""Sets as long as their mass, of a language model's own engine and trainer: slots used on average, residual
mass, and the accept rate to be expected, as the tables of docs/encodings.md.

    tools/rl-environment rl
    bazel run //tests/bench/encodings:engine_sets

The first installs vLLM and SmolLM2-135M into build/rl. vLLM in bfloat16 answers prompts, with the
trainer's weights and with those of four bits (int4.py), and gives the 100 most probable tokens of every
position. The trainer is the float32 model of transformers, with these weights and after some updates on the first engine's responses. A server cuts, keeps, in 12 bits, and decides: a run
for each cap and target.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from tests.bench import environment

CAPS = (10, 50, 100)
TARGETS = (0.9, 0.97, 0.99, 0.999, 0.9999, 0.0)
GROUP = 2  # responses to a prompt
LEARNING_RATE = 1e-5
PROMPTS = (
    "Write a short story about a lighthouse.", "Explain why the sky is blue.", "How do I bake bread?",
    "List five facts about Norway.", "What is 17 * 23? Think step by step.", "Write a poem about rain.",
)  # fmt: skip


def generated(folder, file, tokens):
    """In a process of its own: writes what vLLM answers, response after response, and their prompts."""
    import vllm

    from sis.engines.adapter import Piece
    from sis.engines.vllm import VllmAdapter

    slots = max(CAPS)
    llm = vllm.LLM(
        folder, dtype="bfloat16", enforce_eager=True, max_model_len=tokens + 64, max_num_seqs=len(PROMPTS) * GROUP,
        logprobs_mode="processed_logprobs", max_logprobs=slots, disable_log_stats=True,
    )  # fmt: skip
    tokenizer = llm.get_tokenizer()
    asked = [
        {"prompt_token_ids": tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False)}
        for prompt in PROMPTS
    ]  # fmt: skip
    params = vllm.SamplingParams(n=GROUP, max_tokens=tokens, logprobs=slots, flat_logprobs=True, seed=1, detokenize=False)
    adapter, made = VllmAdapter(llm, params), []
    for output in llm.generate(asked, params, use_tqdm=False):
        for completion in output.outputs:
            piece = Piece(completion, 0, len(completion.token_ids))
            made.append((output.prompt_token_ids, adapter.columns([piece]).record(slots)))
    np.savez(
        file,
        prompts=np.array([prompt + [-1] * (64 - len(prompt)) for prompt, _ in made], np.int32),
        lengths=[len(record.sampled_ids) for _, record in made],
        **{name: np.concatenate([getattr(record, name) for _, record in made]) for name in made[0][1]._fields},
    )


def records_of(file):
    """Of each response: its prompt, and its sis.TopK."""
    import sis

    arrays = np.load(file)
    ends = np.cumsum(arrays["lengths"])[:-1]
    parts = [np.split(arrays[name], ends) for name in sis.TopK._fields]
    return [(row[row >= 0].tolist(), sis.TopK(*record)) for row, *record in zip(arrays["prompts"], *parts)]


def current(model, responses):
    """float32 [positions, slots], at the recorded ids; [positions], of the sampled tokens."""
    import torch

    slots, sampled = [], []
    for prompt, record in responses:
        tokens = torch.tensor([prompt + record.sampled_ids.tolist()])
        with torch.no_grad():
            log_probs = model(tokens).logits[0, len(prompt) - 1 : -1].log_softmax(dim=-1)
        slots.append(log_probs.gather(1, torch.from_numpy(record.top_k_ids).long()))
        sampled.append(log_probs.gather(1, torch.from_numpy(record.sampled_ids).long()[:, None])[:, 0])
    return torch.cat(slots).numpy(), torch.cat(sampled).numpy()


def train(model, responses):
    """An update for each prompt: towards those of its responses that repeat themselves less."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for first in range(0, len(responses), GROUP):
        group = responses[first : first + GROUP]
        rewards = torch.tensor([len(set(record.sampled_ids.tolist())) / len(record.sampled_ids) for _, record in group])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        for (prompt, record), advantage in zip(group, advantages):
            tokens = torch.tensor([prompt + record.sampled_ids.tolist()])
            logits = model(tokens).logits[0, len(prompt) - 1 : -1]
            loss = torch.nn.functional.cross_entropy(logits, tokens[0, len(prompt) :])
            (advantage * loss / len(group)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def measured(client, run_id, responses, policies, cap, target):
    """Slots used on average; of each policy the totals of what the service decides."""
    import sis

    run = client.create_run(run_id, seed=1, vocabulary_size=49152, top_k=cap, mass=target)
    entries, slices = [], []
    for number, (_, record) in enumerate(responses):
        cut = record._replace(top_k_ids=record.top_k_ids[:, :cap], top_k_log_probs=record.top_k_log_probs[:, :cap])
        entries += [sis.Block(str(number), 0, 0, *cut), sis.Seal(str(number), len(cut.sampled_ids))]
        slices.append(sis.Slice(str(number), length=len(cut.sampled_ids)))
    client.append_many(run, entries, sampling=sis.Sampling("processed"))
    records = client.fetch_top_k(run, slices)
    used = np.arange(cap) < records.counts[:, None]
    totals = [
        client.evaluate(
            run, records, draw=draw, log_probs=slots[:, :cap][used] if records.ragged else slots[:, :cap].copy(),
            sampled_log_probs=sampled,
        ).totals
        for draw, (slots, sampled) in enumerate(policies)
    ]  # fmt: skip
    client.delete_run(run_id)
    return records.counts.mean(), totals


def compare(model, engines):
    """Prints a table for each engine. engines: by name responses and their records."""
    import sis
    from server.testing.live_server import LiveServer

    policies = {name: [current(model, responses)] for name, responses in engines.items()}
    train(model, engines["bfloat16"])
    for name, responses in engines.items():
        policies[name].append(current(model, responses))
    server = LiveServer(cache_bytes=1 << 30)
    try:
        with sis.Client(server.address) as client:
            for name, responses in engines.items():
                columns = [f"K = {cap}, {age}" for age in ("fresh", "after updates") for cap in CAPS]
                positions = sum(len(record.sampled_ids) for _, record in responses)
                print(f"\n{name}: {len(responses)} responses, {positions} positions")
                print(f"| slots; % residual mass; accept rate | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}")
                for target in TARGETS:
                    cells = [measured(client, f"{name}-{cap}-{target}", responses, policies[name], cap, target) for cap in CAPS]
                    written = [
                        f"{slots:.2f}; {100 * totals[age].mean_residual_mass:.2f}; {totals[age].mean_expected_acceptance:.4f}"
                        for age in range(2) for slots, totals in cells
                    ]  # fmt: skip
                    print(f"| {target or 'none'} | {' | '.join(written)} |", flush=True)
                fresh, later = (cells[0][1][age].mean_d for age in range(2))
                print(f"D a token: {fresh:.3f}, after updates {later:.3f} nats")
    finally:
        server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64, help="of each response, at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--engine", nargs=2, metavar=("WEIGHTS", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        return generated(*arguments.engine, arguments.tokens)

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tests.bench.encodings import int4

    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        weights = pathlib.Path(__file__).absolute().parents[3] / "client/demo/llm/weights.py"
        subprocess.run([sys.executable, "-P", weights, f"{folder}/bfloat16"], check=True)
        model = AutoModelForCausalLM.from_pretrained(f"{folder}/bfloat16", dtype=torch.float32)
        exact = {name: weight.clone() for name, weight in model.state_dict().items()}
        rounded = {name: int4.rounded_if_linear(name, weight) for name, weight in exact.items()}
        model.load_state_dict(rounded)
        model.save_pretrained(f"{folder}/int4")
        AutoTokenizer.from_pretrained(f"{folder}/bfloat16").save_pretrained(f"{folder}/int4")
        engines = {}
        for name in ("bfloat16", "int4"):
            own = ["--engine", f"{folder}/{name}", f"{folder}/{name}.npz", "--tokens", str(arguments.tokens)]
            subprocess.run([sys.executable, "-P", sys.argv[0], *own], check=True)
            engines[name] = records_of(f"{folder}/{name}.npz")
        model.load_state_dict(exact)
        compare(model, engines)
    return 0


if __name__ == "__main__":
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false"}
    alone = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    environment.start_again_in("rl", VLLM_CPU_KVCACHE_SPACE="1", **quiet, **alone)
    sys.exit(main())
