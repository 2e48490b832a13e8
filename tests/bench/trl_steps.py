"""Measures the cost of SIS to a trainer: SmolLM2-135M by TRL's unchanged GRPOTrainer, which corrects by TIS,
and by SisGRPOTrainer, on rollouts of vLLM.

    tools/rl-environment rl
    bazel run //tests/bench:trl_steps

The first installs them into build/rl. Each measurement is a process of its own, one of either in turn. All
responses have the same number of tokens. Prints the seconds of a rollout and its updates, as medians over
rollouts except the first, which also compiles and allocates, with minimum and maximum over processes. Also
prints the ratio of consecutive processes.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from tests.bench import environment

ARMS = ("TRL", "SIS")


def train(arm, model, address, arguments):
    """Seconds per rollout with its updates, of all but the first."""
    from client.demo.llm import engine  # Before vLLM and TRL.

    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from sis.integrations.trl import SisConfig, SisGRPOTrainer

    engine.prepare()
    engine.prepare_vllm()
    torch.set_num_threads(os.cpu_count())

    ended = []

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step % arguments.updates == 0:
                ended.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder,
            max_steps=arguments.rollouts * arguments.updates,
            per_device_train_batch_size=arguments.responses // arguments.updates,
            steps_per_generation=arguments.updates,
            num_generations=4,
            max_completion_length=arguments.tokens,
            generation_kwargs={"ignore_eos": True},
            use_vllm=True,
            vllm_mode="colocate",
            vllm_importance_sampling_correction=arm == "TRL",
            vllm_max_model_length=arguments.tokens + 64,
            model_init_kwargs={"dtype": "float32"},
            bf16=True,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = {"TRL": GRPOTrainer, "SIS": SisGRPOTrainer}[arm](
            model=model,
            reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
            args=args,
            train_dataset=Dataset.from_list([{"prompt": f"Story {number}:"} for number in range(64)]),
            processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
            callbacks=[Clock()],
            **({"sis_config": SisConfig(address)} if arm == "SIS" else {}),
        )
        trainer.train()
    return [after - before for before, after in zip(ended, ended[1:])]


def measure(arm, model, address, given):
    """The median of `train`, in a process of its own."""
    command = [sys.executable, "-P", __file__, *given, f"--one={arm}", f"--model={model}", f"--address={address}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return statistics.median(json.loads(done.stdout.splitlines()[-1]))


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=6, help="of each measurement")
    parser.add_argument("--updates", type=int, default=2, help="of each rollout")
    parser.add_argument("--responses", type=int, default=16, help="of each rollout")
    parser.add_argument("--tokens", type=int, default=64, help="of each response")
    # One measurement, of these.
    for name in ("--one", "--model", "--address"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(train(arguments.one, arguments.model, arguments.address, arguments)))
        return

    from server.testing.live_server import LiveServer

    seconds = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        model = f"{folder}/model"
        weights = pathlib.Path(__file__).absolute().parents[2] / "client/demo/llm/weights.py"
        subprocess.run([sys.executable, "-P", weights, model], check=True)
        server = LiveServer(cache_bytes=1 << 30)
        try:
            for _ in range(arguments.repetitions):
                for arm in ARMS:
                    seconds[arm].append(measure(arm, model, server.address, sys.argv[1:]))
        finally:
            server.kill()
    tokens = arguments.responses * arguments.tokens
    print(f"seconds for a rollout of {tokens} tokens and {arguments.updates} updates")
    for arm in ARMS:
        print(f"{arm}: {spread(seconds[arm], 2)}")
    print(f"SIS / TRL: {spread([sis / trl for trl, sis in zip(*seconds.values())], 3)}")


if __name__ == "__main__":
    environment.start_again_in("rl")
    main()
