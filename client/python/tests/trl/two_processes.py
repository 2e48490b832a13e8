"""Training in two processes over gloo. Compares each micro-batch with float64."""

import os
import pathlib

import accelerate
import torch
from accelerate.utils import DistributedType
from peft import LoraConfig
from torch.distributed.tensor import DTensor
from trainer_case import DATASET, InFloat64, TrainerCase, reward, settings, whole
from transformers import AutoModelForCausalLM, AutoTokenizer

from sis.integrations.trl import SisConfig

# Settings of a training with filtered rollouts and records of the whole policy.
OWN_SETS = {"config": {"sets": "trainer"}, "top_k": 5}


class Compared(InFloat64):
    gradients = False


def meet(rank, folder, name):
    """Two processes, as a launcher starts them, but that they meet in a file: a port could be taken meanwhile."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{name}.store", rank=rank, world_size=2)
    torch.set_num_threads(1)


def _rank(rank, trainings, path, address, folder):
    """Trains as one of two ranks."""
    meet(rank, folder, "-".join(trainings))
    for name, changed in trainings.items():
        torch.save(_trained(name, path, address, pathlib.Path(folder), **changed), f"{folder}/{name}-{rank}")
    torch.distributed.destroy_process_group()


def _trained(name, path, address, folder, adapters=False, config=None, **changed):
    """Trains. Returns the logged steps, the parameters, the number of split ones, and the results of Compared."""
    args = settings(
        folder / name, optim="sgd", learning_rate=0.1, max_steps=4, loss_type="cispo", epsilon_high=Compared.limit,
        max_grad_norm=0.0, **changed,
    )  # fmt: skip
    if "fsdp" in changed:
        # Accelerate shards on every device but this one, for no reason of PyTorch's.
        accelerate.PartialState._shared_state["distributed_type"] = DistributedType.MULTI_NPU
    if "deepspeed" in changed:
        # Otherwise it compiles its own collectives, with ninja, and uses them instead of gloo's.
        import deepspeed

        deepspeed.ops.__compatible_ops__.clear()
    trainer = Compared(
        model=AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        reward_funcs=reward,
        args=args,
        train_dataset=DATASET,
        processing_class=AutoTokenizer.from_pretrained(path, padding_side="left"),
        peft_config=LoraConfig(target_modules=["q_proj", "down_proj"]) if adapters else None,
        sis_config=SisConfig(address, run=name, seed=5, **(config or {})),
    )
    assert trainer.is_fsdp_enabled == ("fsdp" in changed)
    assert trainer.is_deepspeed_enabled == ("deepspeed" in changed)
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    split = sum(isinstance(value, DTensor) or not value.numel() for value in model.parameters())
    rows = [row for row in trainer.state.log_history if "sis/d" in row]
    assert trainer.compared > 100
    assert trainer.most_acceptance < 1e-3
    return rows, whole(model), split, trainer.most_loss


class TwoProcessCase(TrainerCase):
    def ranks(self, **trainings):
        """By name: of both ranks. trainings: what is changed of each, made one after another."""
        # Where one fails, the other is ended.
        arguments = (trainings, self.path, self.server.address, str(self.folder))
        torch.multiprocessing.spawn(_rank, arguments, nprocs=2)
        read = lambda name, rank: torch.load(self.folder / f"{name}-{rank}", weights_only=False)
        return {name: [read(name, rank) for rank in (0, 1)] for name in trainings}

    def check_as(self, ddp, other, split):
        """Every loss is that of float64, and the training the same as DDP's. split: whether parameters are."""
        for rows, weights, parts, most in other:
            self.assertEqual(parts, len(weights) if split else 0)
            self.assertLess(most, 1e-5)
        for one, row in zip(ddp[0][0], other[0][0], strict=True):
            self.assertEqual((row["sis/missing"], row["sis/envelope_violations"]), (0, 0))
            self.assertEqual(one["sis/accept_rate"], row["sis/accept_rate"])
            self.assertAlmostEqual(one["sis/d"], row["sis/d"], places=5)
        self.assertGreater(other[0][0][1]["sis/d"], 1e-3)
        for weight, value in ddp[0][1].items():
            self.assertLess((value - other[0][1][weight]).abs().max().item(), 1e-5, weight)
