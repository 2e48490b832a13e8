"""TRL with vLLM in a process of its own, by `trl vllm-serve`, over HTTP: run by tools/rl-test."""

import unittest
import unittest.mock

import vllm_process
from trainer_case import InFloat64, TrainerCase
from trl.generation.vllm_client import VLLMClient

from sis.integrations.trl import SisConfig, _refusals


class FromDisk(VLLMClient):
    """A client whose server reads new weights from a folder. TRL itself uses NCCL, which needs a GPU."""

    folder = ""
    updates = 0

    def init_communicator(self, device=0):
        pass

    def update_named_params(self, metadata, named_params):
        vllm_process.load_weights(self.base_url, self.folder, named_params)
        FromDisk.updates += 1


class VllmserverTest(TrainerCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.port = vllm_process.start(
            cls, cls.folder, ["trl", "vllm-serve", "--model", cls.path],
            "--dtype", "float32", "--enforce_eager", "--max_model_len", "128",
        )  # fmt: skip

    def of_server(self, kind, config, **changed):
        FromDisk.folder = str(self.folder / "tiny")
        with unittest.mock.patch("trl.generation.vllm_generation.VLLMClient", FromDisk):
            return self.trainer(
                kind, config, use_vllm=True, vllm_mode="server", vllm_server_timeout=1500,
                vllm_server_base_url=f"http://127.0.0.1:{self.port}", **changed,
            )  # fmt: skip

    def test_trains(self):
        """K above vLLM's own limit, and updated weights as the first ones; the loss beside that in float64."""
        config = SisConfig(self.server.address, run=self.id(), top_k=64)
        trainer = self.of_server(
            InFloat64, config, loss_type="cispo", epsilon_high=InFloat64.limit, generation_kwargs={"seed": 7}
        )
        rows = self.train(trainer)
        self.check_logged(trainer, rows)
        self.assertEqual([row["sis/staleness"] for row in rows], [0, 1, 0, 1])
        # The policies are equal, so the server's log-probs are those of the weights that it got.
        self.assertLess(rows[0]["sis/d"], 1e-5)
        self.assertLess(rows[2]["sis/d"], 1e-5)
        self.assertGreater(rows[1]["sis/d"], 1e-3)
        self.assertGreaterEqual(FromDisk.updates, 2)
        self.assertGreater(trainer.compared, 100)
        self.assertLess(trainer.most, 1e-4)
        # The sampled token's log-prob, of sixty-five that are sorted.
        self.assertAlmostEqual(trainer.mean_ratios[0], 1, places=4)

        told = trainer.vllm_generation.vllm_client.get_server_info()
        _refusals.check_vllm_server(told, 64)
        for changed, message in (
            ({"model_config": {**told["model_config"], "logprobs_mode": "raw_logprobs"}}, "raw_.*Set it to .processed"),
            ({"model_config": {**told["model_config"], "max_logprobs": 20}}, "max_logprobs is 20.*--max-logprobs -1"),
            ({"speculative_config": {"method": "ngram"}}, "speculative_config is .*ngram.*Set it to None"),
        ):
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                _refusals.check_vllm_server({**told, **changed}, 64)


if __name__ == "__main__":
    unittest.main()
