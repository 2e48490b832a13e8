"""TRL's trainer with lost records, and without a server."""

import socket
import time
import warnings

import torch
from server.testing.live_server import LiveServer
from trainer_case import MIB, TrainerCase, Watched
from trl import GRPOTrainer

from sis.integrations.trl import SisConfig


class LostIsStock(Watched):
    """Compares gradients of each micro-batch with those of TRL alone on the sampling log-probs."""

    compared = 0

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        parameters = [value for value in model.parameters() if value.requires_grad]
        ours = torch.autograd.grad(loss, parameters, retain_graph=True)
        with_sampling = {**inputs, "old_per_token_logps": inputs["sampling_per_token_logps"]}
        theirs = torch.autograd.grad(GRPOTrainer._compute_loss(self, model, with_sampling), parameters)
        self.compared += all(torch.equal(a, b) for a, b in zip(ours, theirs))
        return loss


class TrlOutageTest(TrainerCase):
    def test_every_record_lost(self):
        server = LiveServer(cache_bytes=16 * MIB)
        self.addCleanup(server.kill)
        trainer = self.trainer(LostIsStock, SisConfig(server.address))
        server.kill()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            rows = self.train(trainer)
        self.assertEqual(sum("training goes on" in str(warning.message) for warning in seen), 1)
        self.assertEqual([row["sis/missing"] for row in rows], [1] * 4)
        self.assertEqual(trainer.compared, 8)

    def test_killed_server_comes_back(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        servers = [LiveServer(listen=f"127.0.0.1:{port}", cache_bytes=16 * MIB)]

        class Killing(Watched):
            def training_step(self, *args, **kwargs):
                step = self.state.global_step
                # In the middle of a generation's two updates: at 1 another is there at once, at 3 for a generation none.
                if step in (1, 3) and len(servers) == step // 2 + 1 and servers[-1].process.poll() is None:
                    servers[-1].kill()
                if step in (1, 6) and servers[-1].process.poll() is not None:
                    servers.append(LiveServer(listen=f"127.0.0.1:{port}", cache_bytes=16 * MIB))
                if step in (2, 6):
                    # The client skips a server that did not answer for at least a second.
                    time.sleep(1.5)
                return super().training_step(*args, **kwargs)

        self.addCleanup(lambda: servers[-1].close())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            trainer = self.trainer(Killing, SisConfig(f"127.0.0.1:{port}"), max_steps=8)
            rows = self.train(trainer)
        self.assertEqual([row["sis/missing"] for row in rows], [0, 1, 0, 1, 1, 1, 0, 0])
        self.assertGreater(rows[7]["sis/accept_rate"], 0.1)
