"""The snippets of README.md and docs/trl.md, as a reader on a CPU has to run them: with `use_cpu=True, bf16=False`."""

import functools
import os
import pathlib
import tempfile
import unittest.mock

import trl
import vllm
import vllm._custom_ops
import vllm.model_executor.layers.utils
from client.python.tests import snippets
from server.testing.live_server import BINARY
from trainer_case import DATASET, TrainerCase, reward

import sis.integrations.trl


class TrlSnippetTest(TrainerCase):
    def setUp(self):
        """The reader's machine has sis_server, no GPU, and the tiny model under every name. A training has one step."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, pathlib.Path.cwd())
        os.chdir(folder.name)
        self.enterContext(unittest.mock.patch.dict(os.environ, PATH=f"{BINARY.parent}:{os.environ['PATH']}"))
        on_a_cpu = functools.partial(
            trl.GRPOConfig, use_cpu=True, bf16=False, max_steps=1, report_to=[], vllm_max_model_length=512
        )
        self.enterContext(unittest.mock.patch.object(trl, "GRPOConfig", on_a_cpu))
        self.enterContext(unittest.mock.patch.object(vllm._custom_ops, "_supports_onednn", True))
        check = vllm.model_executor.layers.utils.check_cpu_sgl_kernel
        self.enterContext(unittest.mock.patch.object(vllm.model_executor.layers.utils, "check_cpu_sgl_kernel", check))
        # To compile a model takes minutes.
        eager = functools.partial(vllm.LLM, enforce_eager=True)
        self.enterContext(unittest.mock.patch("trl.generation.vllm_generation.LLM", eager))
        self.enterContext(unittest.mock.patch.object(vllm, "LLM", eager))
        snippets.run("trl", 2, {})
        self.assertFalse(vllm._custom_ops._supports_onednn)

    def check(self, trainer):
        (row,) = [row for row in trainer.state.log_history if "sis/accept_rate" in row]
        self.assertEqual(row["sis/missing"], 0)
        self.assertGreater(row["sis/accept_rate"], 0.3)
        trainer.sis_client.close()

    def test_readme(self):
        pathlib.Path("Qwen").mkdir()
        pathlib.Path("Qwen/Qwen2.5-0.5B-Instruct").symlink_to(self.path)
        made = []

        class Noted(sis.integrations.trl.SisGRPOTrainer):
            def train(self):
                made.append(self)
                return super().train()

        with unittest.mock.patch.object(sis.integrations.trl, "SisGRPOTrainer", Noted):
            snippets.run("README", 1, {})
        self.check(*made)

    def test_observing(self):
        here = {"model": self.path, "reward": reward, "dataset": DATASET}
        snippets.run("trl", 1, here)
        self.check(here["trainer"])

    def test_rollouts(self):
        here = {"model": self.path}
        snippets.run("trl", 3, here)
        trainer = self.trainer(rollout_func=here["rollouts"], max_steps=1, temperature=1.0)
        self.train(trainer)
        self.check(trainer)
