"""TRL's trainer with lost records, and without a server."""

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
