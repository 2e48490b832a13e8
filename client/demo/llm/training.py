"""One training, in a process in the environment of the engines.

Takes the arguments of `train` as JSON. Prints a line of JSON for each update, of what was measured. All else
that is printed goes to standard error.
"""

import json
import os
import sys
import tempfile
import time
from typing import Any

# Before those that print are imported.
_RESULTS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from client.demo.llm import engine  # Before TRL.

import torch
from client.demo.llm.settings import Settings, problems, reward
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback

from sis.integrations._decided import Decided
from sis.integrations.trl import SisConfig, SisGRPOTrainer

# Values of TRL's log, once per update, the reward once per rollout; and the names that this program prints.
_MEASURED = {"reward": "reward", "sis/accept_rate": "accept_rate", "sis/d": "d", "sis/d_sis": "d_sis"}


class StaleTrainer(SisGRPOTrainer):
    """Gives vLLM new weights after a rollout instead of before it: from the second rollout on vLLM's weights are
    those that the rollout before began to train."""

    def __init__(self, *args: Any, seed: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seed = seed
        self._rollout = 0
        self._generated_with = 0

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        # The same uniforms in both arms.
        torch.manual_seed(1000 * self._seed + self._rollout)
        self._rollout += 1
        if self._last_loaded_step >= 0:
            self._generated_with = self._last_loaded_step
            # So TRL loads nothing. At first it must.
            self._last_loaded_step = self.state.global_step
        generated = super()._generate_single_turn(*args, **kwargs)
        if self._generated_with != self.state.global_step:
            self.vllm_generation.sync_weights()
        return generated

    def _sis_policy_version(self) -> int:
        return self._generated_with


class Watched(StaleTrainer):
    """TRL on the log-probs that tokens were sampled with. The service decides about every token, and counts; the
    trainer does not use its decisions."""

    def _sis_decided(self, *given: Any) -> Decided:
        decided = super()._sis_decided(*given)
        return decided._replace(accepted=torch.zeros_like(decided.accepted))


# By the names of settings.ARMS.
TRAINERS = {"grpo": Watched, "sis": StaleTrainer}


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
            model=engine.model(model, tokenizer), reward_funcs=reward,
            args=engine.grpo_config(settings, tokenizer, folder, seed),
            train_dataset=Dataset.from_list(problems(settings.largest, seed)), processing_class=tokenizer,
            callbacks=[_Curves(settings)], seed=seed, sis_config=SisConfig(address, settings.top_k, run=run),
        )  # fmt: skip
        trainer.train()
        trainer.sis_client.close()


if __name__ == "__main__":
    train(**json.loads(sys.argv[1]))
