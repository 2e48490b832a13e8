"""Runs, one after the other, in a process in the environment of the engines.

Reads a line of JSON for each, what `train` takes. Writes one for each update, of what is measured, and at
the end of the run one of what came of it. All else that is printed goes where errors go.
"""

import gc
import importlib.metadata
import json
import os
import sys
import tempfile
import time

# Before those that print are imported.
_RESULTS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from client.study.language_model import engine  # Before TRL.

import torch
from client.study.language_model import evaluation, task
from client.study.language_model.arms import ARMS
from client.study.language_model.settings import Settings
from client.study.language_model.stale import Engine
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback

from sis.trl import SisConfig

# Of TRL's log, once per update, the reward once per rollout: as it is named there, and in the
# results.
_MEASURED = {
    "reward": "reward",
    "sis/accept_rate": "accept_rate",
    "sis/expected_accept_rate": "expected_accept_rate",
    "sis/d": "d",
    "sis/d_sis": "d_sis",
    "sis/staleness": "staleness",
    "sis/residual_mass": "residual_mass",
    "grad_norm": "gradient_norm",
}
_PACKAGES = ("torch", "transformers", "trl")


def _write(result):
    print(json.dumps(result), file=_RESULTS, flush=True)


class Curves(TrainerCallback):
    """What is measured of every update, and now and then of the policy on held-out problems."""

    def __init__(self, settings, tokenizer, held_out):
        self._settings = settings
        self._tokenizer = tokenizer
        self._held_out = held_out
        self._updates = []
        self._end = time.monotonic() + settings.seconds
        # Rollouts that were trained on -> evaluation.Evaluation.
        self.evaluations = {}

    def rollouts(self):
        """Name -> a mean per rollout."""
        means = {}
        rollouts = sum("reward" in update for update in self._updates)
        for name in _MEASURED.values():
            values = [update[name] for update in self._updates if name in update]
            each = len(values) // rollouts
            means[name] = [
                float(f"{sum(values[first : first + each]) / each:.5g}")
                for first in range(0, len(values), each)
            ]
        return means

    def on_log(self, args, state, control, logs=None, **_):
        if "sis/missing" not in logs:
            # The last one sums up.
            return
        if logs["sis/missing"] or logs["sis/envelope_violations"]:
            raise RuntimeError(f"the service did not decide about every token: {logs}")
        self._updates.append({name: logs[key] for key, name in _MEASURED.items() if key in logs})
        _write(self._updates[-1])

    def on_step_end(self, args, state, control, model=None, **_):
        rollout, rest = divmod(state.global_step, self._settings.updates)
        if rest:
            return
        ends = rollout == self._settings.rollouts or time.monotonic() > self._end
        control.should_training_stop = ends
        if ends or rollout % self._settings.evaluated == 0:
            model.eval()
            self.evaluations[rollout] = evaluation.evaluate(model, self._tokenizer, self._held_out)
            model.train()


def train(model, generates, arm, seed, settings, address, run):
    """generates: the fields of stale.Engine. settings: those of settings.Settings. address: of the
    service, where the run is called `run`."""
    began = time.process_time()
    settings = Settings(**settings)
    engine.prepare()
    if settings.engine == "vllm":
        engine.prepare_vllm()
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    learned, held_out = task.split(settings, seed)
    curves = Curves(settings, tokenizer, held_out)
    with tempfile.TemporaryDirectory() as folder:
        args = engine.grpo_config(settings, tokenizer, folder, seed, **ARMS[arm].settings)
        trainer = ARMS[arm].trainer(settings.engine)(
            model=engine.model(model, tokenizer), reward_funcs=task.reward, args=args,
            train_dataset=Dataset.from_list(learned), processing_class=tokenizer,
            callbacks=[curves], engine=Engine(**generates), seed=seed,
            sis_config=SisConfig(address, settings.top_k, run=run, **ARMS[arm].sis),
        )  # fmt: skip
        trainer.train()
        trainer.sis_client.close()
        # The next run needs the memory.
        trainer.accelerator.free_memory()
        del trainer
        gc.collect()
    *_, final = curves.evaluations.values()
    rollouts = curves.rollouts()
    rewards = rollouts["reward"]
    _write({
        "final_reward": round(final.reward, 5),
        "final_greedy": final.greedy,
        "mean_reward": round(sum(rewards) / len(rewards), 5),
        "rollouts": rollouts,
        "evaluations": {
            rollout: [round(value, 5) for value in of] for rollout, of in curves.evaluations.items()
        },
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "device": torch.cuda.get_device_name() if not args.use_cpu else "CPU",
        "processor_seconds": round(time.process_time() - began),
    })  # fmt: skip


if __name__ == "__main__":
    for line in sys.stdin:
        train(**json.loads(line))
