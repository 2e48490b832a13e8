"""verl's own trainer around its actor: its programs, the plug-in, the recipe, and TransferQueue."""

import importlib
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import tomllib
import torch
from expected import gradients as expected_gradients
from takes_minutes import takes_minutes
from training_worker import append, batch, rollout
from verl_case import WHOLE, K, VerlCase, free_port

from sis.integrations._names import SESSION, name_in
from sis.integrations.verl import SisConfig


class VerlTrainerTest(VerlCase):
    def test_all_that_main_ppo_imports_is_installed(self):
        """Once it runs: it imports its trainers late."""
        for name in ("main_ppo", "main_ppo_v0", "ppo.v1"):
            importlib.import_module(f"verl.trainer.{name}")

    def test_the_plugin_and_the_recipe_in_verls_own_actor(self):
        package = pathlib.Path(__file__).parents[2]
        samples = rollout(self.coarse, 8, 20, 8)
        with tempfile.TemporaryDirectory() as folder:
            # As pip would leave it.
            (metadata := pathlib.Path(folder) / "sis_ratio-0.dist-info").mkdir()
            (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sis-ratio\nVersion: 0\n")
            points = tomllib.loads((package / "pyproject.toml").read_text())["project"]["entry-points"]
            lines = [f"{name} = {module}" for name, module in points["verl.plugins"].items()]
            (metadata / "entry_points.txt").write_text("\n".join(["[verl.plugins]", *lines]))
            told = SisConfig(address=self.address, run="my-training", top_k=20)
            append(self.client, told.create_run(self.client, WHOLE, algorithm="verl"), samples)
            torch.save(samples, file := f"{folder}/samples")
            overrides = package / "examples/verl/overrides.txt"
            script = pathlib.Path(__file__).parent / "plugin_worker.py"
            subprocess.run(
                [sys.executable, script, self.address, str(free_port()), self.path, overrides, file],
                env={**os.environ, "PYTHONPATH": f"{folder}:{os.environ['PYTHONPATH']}"}, check=True, timeout=240,
            )  # fmt: skip
            answer = torch.load(file, weights_only=False)
        self.assertEqual(answer["replica"], "sis.integrations.verl._plugin")
        self.assertRegex(answer["refused"], "rollout_is .* Set it to None")
        self.assertEqual(answer["metrics"]["sis/missing"], [0.0, 0.0])
        self.assertGreater(min(answer["metrics"]["sis/accept_rate"]), 0.3)

    @takes_minutes
    def test_sessions_of_transfer_queue_name_what_is_recorded(self):
        samples = rollout(self.coarse, 8, K, 23)
        settings = self.settings(log_prob_encoding="float32")
        tokens = [np.array(sample.tokens) for sample in samples]

        def named(number):
            """Turns that the session names."""
            for turn in samples[number].turns:
                context = [*samples[number].prompt, *samples[number].tokens[: turn.start]]
                turn.name = name_in(f"uid_{number}", context)

        for number in (0, 1, 2, 3, 4, 7):
            named(number)
        run = settings.create_run(self.client, WHOLE, algorithm="verl")
        append(self.client, run, samples)
        # Under the name that the session gives 6 something else is recorded, which is not its.
        other = rollout(self.coarse, 7, K, 24)[6]
        other.prompt = samples[6].prompt
        other.turns[0].name = name_in("uid_6", [*samples[6].prompt, *samples[6].tokens[: samples[6].turns[0].start]])
        other.turns = other.turns[:1]
        append(self.client, run, [other])
        # A response that is longer than verl allows is cut.
        cut, turn = samples[1], samples[1].turns[-1]
        for name in ("tokens", "mask", "log_probs"):
            setattr(cut, name, getattr(cut, name)[:-3])
        turn.log_probs = turn.log_probs[:-3]
        self.assertLess(len(cut.tokens), len(tokens[1]))
        advantages = batch(samples)["advantages"]
        with tempfile.TemporaryDirectory() as folder:
            task = {"path": self.path, "samples": samples, "settings": vars(settings), "advantages": advantages}
            torch.save(task, f"{folder}/task")
            script = pathlib.Path(__file__).parent / "queued_samples.py"
            subprocess.run([sys.executable, script, str(free_port()), folder], check=True, timeout=540)
            answer = torch.load(f"{folder}/answer", weights_only=False)
        self.assertEqual([told["extra_args"] for told in answer["told"]], [{SESSION: f"uid_{i}"} for i in range(8)])
        expected, share = expected_gradients(self.model, samples, advantages, seed=1, draw=0, top_k=K)
        self.assertEqual(answer["metrics"]["sis/missing"], [0.0])
        self.assertAlmostEqual(answer["metrics"]["sis/accept_rate"][0], share, delta=1e-12)
        (step,) = answer["gradients"]
        self.assert_close(step, expected)
