"""One arm of the comparison, a process in the environment of the engines: TRL trains SmolLM2 in float32
on rollouts of vLLM in bfloat16.

    arm.py MODEL ARM PROGRESS DEADLINE SETTINGS

writes a line of JSON per update to the file descriptor PROGRESS. DEADLINE is on time.monotonic(),
SETTINGS the fields of settings.Settings, and the server's address, as JSON.
"""

import json
import os
import sys
import tempfile
import time

from client.study.language_model import engine  # Before vLLM and TRL.

from client.demo.language_model.settings import Settings
from client.study.language_model import task
from client.study.language_model.arms import OnSampledLogProbs
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback

from sis.trl import SisConfig, SisGRPOTrainer

# Of TRL's log: as it is named there, and in a line of progress.
_LOGGED = {
    "reward": "reward",
    "sis/accept_rate": "accept_rate",
    "sis/d": "d",
    "sis/d_sis": "d_sis",
    "sis/residual_mass": "residual_mass",
    "sis/missing": "missing",
    "sis/staleness": "staleness",
}


class Measured(OnSampledLogProbs, SisGRPOTrainer):
    """GRPO without SIS."""


class Progress(TrainerCallback):
    def __init__(self, file, deadline):
        self._file = file
        self._deadline = deadline

    def on_log(self, args, state, control, logs=None, **_):
        # The last one sums up.
        if "sis/missing" in logs:
            line = {ours: logs[theirs] for theirs, ours in _LOGGED.items() if theirs in logs}
            self._file.write(json.dumps({"step": state.global_step, **line}) + "\n")
            self._file.flush()

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = time.monotonic() > self._deadline


def main(model, arm, progress, deadline, settings_and_address):
    fields = json.loads(settings_and_address)
    address = fields.pop("address")
    settings = Settings(**fields)
    engine.prepare()
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    with tempfile.TemporaryDirectory() as folder, os.fdopen(int(progress), "w") as file:
        args = engine.grpo_config(
            settings, tokenizer, folder, settings.seed,
            max_steps=10_000,
            model_init_kwargs={"dtype": "float32"},
            bf16=False,
        )  # fmt: skip
        problems = Dataset.from_list(task.problems(1024, settings.largest, settings.seed))
        config = SisConfig(address, top_k=settings.top_k, run=arm)
        made = {"grpo": Measured, "grpo-sis": SisGRPOTrainer}[arm](
            model=model, reward_funcs=task.reward, args=args, train_dataset=problems, processing_class=tokenizer,
            sis_config=config, callbacks=[Progress(file, float(deadline))],
        )  # fmt: skip
        made.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
