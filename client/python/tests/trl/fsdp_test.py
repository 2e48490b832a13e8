"""TRL with FSDP2, two processes over gloo, beside DDP and float64: run by tools/rl-test."""

import os
import pathlib
import types
import unittest
import unittest.mock

import accelerate
import torch
from accelerate.utils import DistributedType
from peft import LoraConfig
from torch.distributed.tensor import DTensor
from trainer_case import DATASET, TrainerCase, Watched, in_float64, largest, reward, settings, whole
from transformers import AutoModelForCausalLM, AutoTokenizer

from sis.trl import SisConfig, decisions, refusals

LIMIT = 1.5


class Compared(Watched):
    """Compares the loss of every micro-batch with that of "cispo" in float64, of the gathered parameters."""

    most, micro_batches = 0.0, 0

    def _sis_old_log_probs(self, inputs, acceptance):
        self.accepted = acceptance.accepted
        return super()._sis_old_log_probs(inputs, acceptance)

    def _compute_loss(self, model, inputs):
        double = in_float64(self.accelerator.unwrap_model(self.model))
        loss = super()._compute_loss(model, inputs)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        tokens = inputs["completion_ids"][..., None]
        with torch.no_grad():
            logits = double(ids, attention_mask=mask).logits[:, -tokens.shape[1] - 1 : -1] / self.temperature
            log_p = logits.log_softmax(-1).gather(-1, tokens)[..., 0]
            ratio = (log_p - inputs["sampling_per_token_logps"].double()).exp()
            weight = torch.where(self.accepted, 1.0, ratio).clamp(max=LIMIT)
        terms = weight * log_p * inputs["advantages"][:, None] * inputs["completion_mask"]
        count = inputs["num_items_in_batch"] / self.accelerator.num_processes
        theirs = -(terms.sum() / count).item()
        self.most = largest(self.most, (loss - theirs) / (terms.abs().sum() / count))
        self.micro_batches += 1
        return loss


def _rank(rank, name, path, address, folder):
    """One of two processes, as a launcher starts them, but that they meet in a file: a port could be taken meanwhile."""
    sharded = name != "ddp"
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{name}.store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    wrapped = {"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]}
    args = settings(
        pathlib.Path(folder) / name, optim="sgd", learning_rate=0.1, max_steps=4, loss_type="cispo", epsilon_high=LIMIT,
        max_grad_norm=0.0, **({"fsdp": True, "fsdp_config": wrapped} if sharded else {}),
    )  # fmt: skip
    if sharded:
        # Accelerate shards on every device but this one, for no reason of PyTorch's.
        accelerate.PartialState._shared_state["distributed_type"] = DistributedType.MULTI_NPU
    trainer = Compared(
        model=AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        reward_funcs=reward,
        args=args,
        train_dataset=DATASET,
        processing_class=AutoTokenizer.from_pretrained(path, padding_side="left"),
        peft_config=LoraConfig(target_modules=["q_proj", "down_proj"]) if name == "adapters" else None,
        sis_config=SisConfig(address, run=name, seed=5),
    )
    assert trainer.is_fsdp_enabled == sharded
    trainer.train()
    parameters = [*trainer.accelerator.unwrap_model(trainer.model).parameters()]
    split = sum(isinstance(parameter, DTensor) for parameter in parameters)
    weights = whole(trainer.accelerator.unwrap_model(trainer.model))
    rows = [row for row in trainer.state.log_history if "sis/d" in row]
    torch.save((rows, weights, split, trainer.most, trainer.micro_batches), f"{folder}/{name}-{rank}")
    torch.distributed.destroy_process_group()


class FsdpTest(TrainerCase):
    def ranks(self, name):
        # Where one fails, the other is ended.
        torch.multiprocessing.spawn(_rank, (name, self.path, self.server.address, str(self.folder)), nprocs=2)
        return [torch.load(self.folder / f"{name}-{rank}", weights_only=False) for rank in (0, 1)]

    def test_as_ddp_and_float64(self):
        seen = {name: self.ranks(name) for name in ("ddp", "fsdp")}
        for (rows, weights, split, most, micro_batches), name in [(one, name) for name in seen for one in seen[name]]:
            with self.subTest(name):
                self.assertEqual(split, len(weights) if name == "fsdp" else 0)
                self.assertEqual(micro_batches, 8)
                self.assertLess(most, 1e-5)
        for one, other in zip(seen["ddp"][0][0], seen["fsdp"][0][0], strict=True):
            self.assertEqual((other["sis/missing"], other["sis/envelope_violations"]), (0, 0))
            self.assertEqual(one["sis/accept_rate"], other["sis/accept_rate"])
            self.assertAlmostEqual(one["sis/d"], other["sis/d"], places=5)
        self.assertGreater(seen["fsdp"][0][0][1]["sis/d"], 1e-3)
        for weight, value in seen["ddp"][0][1].items():
            self.assertLess((value - seen["fsdp"][0][1][weight]).abs().max().item(), 1e-5, weight)

    def test_adapters(self):
        """The head stays split while losses are computed."""
        for rows, weights, split, most, micro_batches in self.ranks("adapters"):
            self.assertEqual((split, micro_batches), (len(weights), 8))
            self.assertEqual([row["sis/missing"] + row["sis/envelope_violations"] for row in rows], [0] * 4)
            self.assertGreater(rows[1]["sis/d"], 1e-3)
            self.assertLess(most, 1e-5)

    def test_refused(self):
        refusals.check_sharding(settings(self.folder))
        refusals.check_sharding(settings(self.folder, fsdp=True, fsdp_config={"fsdp_version": 2}))
        with self.assertRaisesRegex(ValueError, "DeepSpeed.*use FSDP2"):
            refusals.check_sharding(types.SimpleNamespace(deepspeed_plugin=object(), fsdp_plugin_args=None))
        # Before a model is loaded, or an engine started.
        first = "FSDP1.*set fsdp_version to 2"
        with self.assertRaisesRegex(ValueError, first):
            self.trainer(model="none", fsdp=True, fsdp_config={"fsdp_version": 1})
        launched = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}
        with unittest.mock.patch.dict(os.environ, launched), self.assertRaisesRegex(ValueError, first):
            self.trainer(model="none")

    def test_a_head_that_stays_split(self):
        """As of a model with adapters, or whose final norm Accelerate does not find."""
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        head = torch.nn.Linear(8, 16, bias=False)
        weight = head.weight.detach().clone()
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        split = torch.distributed.tensor.distribute_tensor(weight, mesh, [torch.distributed.tensor.Shard(0)])
        for frozen, learns in ((True, False), (True, True), (False, False)):
            head.weight = torch.nn.Parameter(split, requires_grad=not frozen)
            self.assertTrue(torch.equal(decisions.whole_head(head, learns).weight, weight))
        with self.assertRaisesRegex(ValueError, "the head learns, and is split.*use DDP, or adapters"):
            decisions.whole_head(head, learns=True)


if __name__ == "__main__":
    unittest.main()
