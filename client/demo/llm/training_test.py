"""TRL and vLLM themselves, on a tiny random model: run by tools/rl-test."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import unittest

import tiny_model

import sis
from client.demo.llm.settings import ARMS, Settings

SERVER = pathlib.Path(__file__).parents[3] / "server/main/sis_server"
SETTINGS = Settings(rollouts=2, prompts=2, group=2, updates=2)


class TrainingTest(unittest.TestCase):
    def test_both_arms_train(self):
        os.environ["PATH"] = f"{SERVER.parent}{os.pathsep}{os.environ['PATH']}"
        model = tiny_model.make_for(self)
        with sis.local_server() as server:
            for arm in ARMS:
                given = {
                    "model": str(model), "arm": arm, "seed": 1, "settings": dataclasses.asdict(SETTINGS),
                    "address": server.address, "run": arm,
                }  # fmt: skip
                command = [sys.executable, "-m", "client.demo.llm.training", json.dumps(given)]
                environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
                made = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
                updates = list(map(json.loads, made.stdout.splitlines()))
                self.assertEqual(len(updates), 4)
                self.assertEqual([set(update) >= {"accept_rate", "d", "d_sis"} for update in updates], [True] * 4)
                self.assertEqual(["reward" in update for update in updates], [True, False] * 2)
            # From the second rollout on the engine is one rollout behind.
            with sis.Client(server.address) as client:
                for arm in ARMS:
                    run = client.get_run(arm).run
                    self.assertEqual(sorted(client.list_steps(run)), [0, 1, 2, 3])


if __name__ == "__main__":
    unittest.main()
