"""Shared by the tests of verl's FSDP2 engine: a worker, models and a real server, made once per process."""

import atexit
import contextlib
import copy
import pathlib
import socket
import subprocess
import sys
import tempfile
import types
import unittest
import warnings

import tiny_model
import training_worker
from training_worker import Gradients, append, detach, rollout


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


training_worker.environment(0, 1, free_port())

import torch
from server.testing.live_server import LiveServer

import sis
from sis.integrations.verl import SisConfig, attach

K = 16
# Few enough for a record to hold all of them.
WHOLE = tiny_model.VOCABULARY = training_worker.VOCABULARY


def metrics_of(output):
    from verl.utils import tensordict_utils

    return tensordict_utils.get(output, "metrics")


@contextlib.contextmanager
def warned(test):
    # unittest's own way imports all that transformers would import when it is needed.
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    test.assertEqual(sum("and training goes on: " in str(warning.message) for warning in seen), 1)


class VerlCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Shared by all classes; unittest would tear it down after each module.
        if not hasattr(VerlCase, "worker"):
            VerlCase._make(atexit.register)

    @classmethod
    def _make(cls, at_the_end):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        cls.path = str(tiny_model.make_for(types.SimpleNamespace(addClassCleanup=at_the_end)))
        torch.distributed.init_process_group("gloo", rank=0, world_size=1)
        at_the_end(torch.distributed.destroy_process_group)
        cls.worker = training_worker.make_worker(cls.path)
        cls.initial = [p.detach().clone() for p in cls.worker.engine.module.parameters()]
        cls.model = AutoModelForCausalLM.from_pretrained(cls.path, dtype=torch.float32)
        cls.coarse = AutoModelForCausalLM.from_pretrained(cls.path, dtype=torch.bfloat16)
        cls.stale = copy.deepcopy(cls.model)
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in cls.stale.parameters():
                parameter.add_(0.03 * parameter.abs().mean() * torch.randn_like(parameter))
        server = LiveServer(cache_bytes=256 << 20)
        at_the_end(server.close)
        cls.address = server.address
        cls.client = sis.Client(server.address)
        at_the_end(cls.client.close)

    def setUp(self):
        self.addCleanup(self.reset)

    def reset(self):
        detach(self.worker)
        with torch.no_grad():
            for parameter, before in zip(self.worker.engine.module.parameters(), self.initial):
                parameter.copy_(before)
        self.worker.engine.optimizer.state.clear()

    def settings(self, **changed):
        return SisConfig(**{"address": self.address, "run": self.id().split(".")[-1], "top_k": K, "seed": 1, **changed})

    def attached(self, settings, *others):
        training = attach(self.worker, settings, *others)
        self.addCleanup(training.close)
        return training

    def stepped(self, data, worker=None):
        """The gradients of a mini-batch, and SIS's metrics of it, by their names after the prefix."""
        worker = worker or self.worker
        gradients = Gradients(worker)
        metrics = metrics_of(worker.train_batch(data))
        (step,) = gradients.steps
        return step, {name[len("sis/") :]: value[0][0] for name, value in metrics.items() if name.startswith("sis/")}

    def assert_same(self, step, other):
        for name, gradient in step.items():
            self.assertTrue(torch.equal(gradient, other[name]), name)
            self.assertTrue(gradient.abs().max() > 0 or "bias" in name, name)

    def assert_close(self, step, expected):
        self.assertEqual(set(step), set(expected))
        for name, gradient in expected.items():
            torch.testing.assert_close(step[name].double(), gradient.double(), rtol=1e-3, atol=1e-5, msg=name)

    def stock(self, data):
        """Gradients of verl's own loss."""
        step, _ = self.stepped(data)
        detach(self.worker)
        return step

    def recorded(self, model, count, top_k, seed, mass=0.0, observe=False, **filters):
        """Samples that the run of this test has, and its settings."""
        samples = rollout(model, count, top_k, seed, **filters)
        settings = self.settings(
            run=f"{self.id().split('.')[-1]}-{seed}", top_k=top_k, mass=mass, observe=observe, log_prob_encoding="float32"
        )
        append(self.client, settings.create_run(self.client, WHOLE, algorithm="verl"), samples)
        return samples, settings

    def two_ranks(self, steps, arrangement=None, script="two_ranks.py", **batch_settings):
        """Returns the result of each rank, step by step. Each of `steps` is (samples, settings, truncated)."""
        with tempfile.TemporaryDirectory() as folder:
            task = {"path": self.path, "arrangement": arrangement or {}, "steps": steps, "batch": batch_settings}
            torch.save(task, f"{folder}/task")
            port, path = free_port(), pathlib.Path(__file__).parent / script
            ranks = [subprocess.Popen([sys.executable, path, str(rank), str(port), folder]) for rank in range(2)]
            self.assertEqual([rank.wait(timeout=540) for rank in ranks], [0, 0])
            return [torch.load(f"{folder}/answer{rank}", weights_only=False) for rank in range(2)]
