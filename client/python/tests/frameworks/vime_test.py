import contextlib
import json
import types
import unittest
import unittest.mock
import urllib.request

import vllm_process
from http_engines import VllmEngine
from slime_family_case import K, SlimeCase
from vime.utils.data import process_rollout_data

import sis.integrations.vime
from sis.integrations import SisConfig


class VimeTest(SlimeCase, unittest.TestCase):
    module = sis.integrations.vime
    # vLLM lists the sampled token among them.
    engine_class, LISTED = VllmEngine, K + 2
    OWN = {
        **SlimeCase.OWN, "vllm_dp_size": 1, "vllm_max_logprobs": K + 2, "vllm_speculative_config": None,
        "pg_loss_type": None,
    }  # fmt: skip
    METRICS = "observability.train_metric_utils"
    REFUSED_OF_ENGINE = (
        ({"vllm_speculative_config": {"method": "ngram"}}, "vllm_speculative_config is .*ngram.*Set it to None"),
        ({"vllm_max_logprobs": 20}, "vllm_max_logprobs is 20.*set it to 22"),
    )
    REFUSED = (({"pg_loss_type": "reinforce"}, "no ratio. Set it to 'ppo'"),)

    def processed(self, args, held):
        return process_rollout_data(held, 0, 1)

    @contextlib.contextmanager
    def on_cpu(self):
        cpu = {name: lambda: "cpu" for name in ("device", "current_device")}
        with unittest.mock.patch.multiple("vime.utils.accelerator", **cpu):
            yield

    def test_vllm_itself(self):
        """Runs vLLM's own server instead of the one that imitates it."""
        port = vllm_process.start(
            type(self), self.folder.parent, ["python", "-m", "vllm.entrypoints.openai.api_server"],
            "--model", str(self.folder), "--dtype", "float32", "--enforce-eager", "--max-model-len", "128",
            "--max-logprobs", str(self.LISTED), "--logprobs-mode", "processed_logprobs", "--enable-scale-out",
            HF_HUB_OFFLINE="1", VLLM_SERVER_DEV_MODE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind",
        )  # fmt: skip
        named = json.dumps({"new_version": "0"}).encode()
        headers = {"Content-Type": "application/json"}
        told = urllib.request.Request(f"http://127.0.0.1:{port}/update_weight_version", named, headers)
        urllib.request.urlopen(told).close()
        args = self.args(vllm_router_port=port)
        samples = self.generated(args)
        self.assertEqual(self.engine.requests, [])
        self.update(args, samples, self.behaviour, 0, "packed")
        totals = self.totals(args.sis["run"], 0)
        self.assertEqual((totals.rejected, totals.missing), (0, 0))
        self.assertLess(totals.d / totals.scored, 1e-5)
        self.check_as_float64(args, args.sis["run"], samples, 1, "packed")

    def test_arguments_that_are_not_there(self):
        """vime ignores vLLM's arguments when it only debugs training; a limit of -1 means no limit."""
        args = self.args()
        for changed in ({"vllm_max_logprobs": -1}, {"pg_loss_type": "ppo"}):
            self.check(types.SimpleNamespace(**{**vars(args), **changed}))
        del args.vllm_max_logprobs, args.vllm_speculative_config
        self.check(args)

    def check(self, args):
        self.module._process.framework.check_arguments(args, SisConfig(top_k=K))

    def check_arguments(self, text):
        super().check_arguments(text, "pg_loss_type")


if __name__ == "__main__":
    unittest.main()
