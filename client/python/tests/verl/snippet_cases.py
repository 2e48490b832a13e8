"""The snippets of docs/verl.md."""

import pathlib

import numpy as np
import training_worker
from client.python.tests import snippets
from training_worker import append, batch, rollout
from verl_case import WHOLE, VerlCase, metrics_of

from sis.integrations.verl import SisConfig


class VerlSnippetTest(VerlCase):
    def test_without_ray(self):
        samples = rollout(self.coarse, 8, 20, 31)
        run = SisConfig(self.address, run="my-training").create_run(self.client, WHOLE, algorithm="verl")
        # VerlTrainerTest uses this name too.
        self.addCleanup(self.client.delete_run, run.id)
        append(self.client, run, samples)
        worker = training_worker.make_worker(self.path)
        here = {"worker": worker, "actor_config": training_worker.actor_config(worker), "address": self.address}
        snippets.run("verl", 1, here)
        metrics = metrics_of(worker.train_batch(batch(samples)))
        self.assertEqual(np.ravel(metrics["sis/missing"]).tolist(), [0.0])
        self.assertGreater(np.ravel(metrics["sis/accept_rate"])[0], 0.3)

    def test_the_command_has_overrides_of_the_recipe(self):
        """VerlTrainerTest runs the recipe."""
        recipe = (pathlib.Path(__file__).parents[2] / "examples/verl/overrides.txt").read_text()
        (command,) = snippets.of_page("verl", "sh")
        overrides = [word for word in command.replace("sis:50051", '"$SIS_ADDRESS"').split() if "=" in word]
        self.assertEqual(len(overrides), 4)
        self.assertLessEqual(set(overrides), set(recipe.splitlines()))
