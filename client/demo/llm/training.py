"""One training, in a process in the environment of the engines.

Takes the arguments of `train` as JSON. Prints a line of JSON for each update, of what was measured. All else
that is printed goes to standard error.
"""

import json
import os
import sys
import tempfile
import time

# Before those that print are imported.
_RESULTS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from client.demo.llm import engine  # Before TRL.

from client.demo.llm import task
from client.demo.llm.settings import Settings
from client.demo.llm.stale import TRAINERS
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback

from sis.integrations.trl import SisConfig

# Values of TRL's log, once per update, the reward once per rollout; and the names that this program prints.
_MEASURED = {"reward": "reward", "sis/accept_rate": "accept_rate", "sis/d": "d", "sis/d_sis": "d_sis"}


class _Curves(TrainerCallback):
    """Prints what is measured of every update, and ends the training when its time is up."""

    def __init__(self, settings):
        self._updates = settings.updates
        self._end = time.monotonic() + settings.seconds

    def on_log(self, args, state, control, logs=None, **_):
        if "sis/missing" not in logs:
            # The last one sums up.
            return
        if logs["sis/missing"] or logs["sis/envelope_violations"]:
            raise RuntimeError(f"the service did not decide about every token: {logs}")
        measured = {name: logs[key] for key, name in _MEASURED.items() if key in logs}
        print(json.dumps(measured), file=_RESULTS, flush=True)

    def on_step_end(self, args, state, control, **_):
        if state.global_step % self._updates == 0 and time.monotonic() > self._end:
            control.should_training_stop = True


def train(model, arm, seed, settings, address, run):
    """Trains with the service at `address`.

    Args:
        model: Its folder.
        arm: Of settings.ARMS.
        settings: The fields of settings.Settings.
        run: The name of the service's run.
    """
    settings = Settings(**settings)
    engine.prepare()
    engine.prepare_vllm()
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    with tempfile.TemporaryDirectory() as folder:
        trainer = TRAINERS[arm](
            model=engine.model(model, tokenizer), reward_funcs=task.reward,
            args=engine.grpo_config(settings, tokenizer, folder, seed),
            train_dataset=Dataset.from_list(task.problems(settings.largest, seed)), processing_class=tokenizer,
            callbacks=[_Curves(settings)], seed=seed, sis_config=SisConfig(address, settings.top_k, run=run),
        )  # fmt: skip
        trainer.train()
        trainer.sis_client.close()


if __name__ == "__main__":
    train(**json.loads(sys.argv[1]))
