"""What trains in two processes over gloo, each micro-batch beside float64."""

import os
import pathlib

import accelerate
import torch
from accelerate.utils import DistributedType
from peft import LoraConfig
from torch.distributed.tensor import DTensor
from trainer_case import DATASET, TrainerCase, Watched, in_float64, largest, reward, settings, whole
from transformers import AutoModelForCausalLM, AutoTokenizer

from sis.trl import SisConfig

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


def _rank(rank, trainings, path, address, folder):
    """One of two processes, as a launcher starts them, but that they meet in a file: a port could be taken meanwhile."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    store = f"file://{folder}/{'-'.join(trainings)}.store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.set_num_threads(1)
    for name, changed in trainings.items():
        torch.save(_trained(name, path, address, pathlib.Path(folder), **changed), f"{folder}/{name}-{rank}")
    torch.distributed.destroy_process_group()


def _trained(name, path, address, folder, adapters=False, score_centering=False, **changed):
    """What it logged of steps, the parameters, how many are split, and what Compared found."""
    args = settings(
        folder / name, optim="sgd", learning_rate=0.1, max_steps=4, loss_type="cispo", epsilon_high=LIMIT,
        max_grad_norm=0.0, **changed,
    )  # fmt: skip
    if "fsdp" in changed:
        # Accelerate shards on every device but this one, for no reason of PyTorch's.
        accelerate.PartialState._shared_state["distributed_type"] = DistributedType.MULTI_NPU
    if "deepspeed" in changed:
        # Else it compiles collectives of its own, with ninja, and takes them in the place of gloo's.
        import deepspeed

        deepspeed.ops.__compatible_ops__.clear()
    trainer = Compared(
        model=AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        reward_funcs=reward,
        args=args,
        train_dataset=DATASET,
        processing_class=AutoTokenizer.from_pretrained(path, padding_side="left"),
        peft_config=LoraConfig(target_modules=["q_proj", "down_proj"]) if adapters else None,
        sis_config=SisConfig(address, run=name, seed=5, score_centering=score_centering),
    )
    assert trainer.is_fsdp_enabled == ("fsdp" in changed)
    assert trainer.is_deepspeed_enabled == ("deepspeed" in changed)
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    split = sum(isinstance(value, DTensor) or not value.numel() for value in model.parameters())
    rows = [row for row in trainer.state.log_history if "sis/d" in row]
    return rows, whole(model), split, trainer.most, trainer.micro_batches


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
        for rows, weights, parts, most, micro_batches in other:
            self.assertEqual(parts, len(weights) if split else 0)
            self.assertEqual(micro_batches, 8)
            self.assertLess(most, 1e-5)
        for one, row in zip(ddp[0][0], other[0][0], strict=True):
            self.assertEqual((row["sis/missing"], row["sis/envelope_violations"]), (0, 0))
            self.assertEqual(one["sis/accept_rate"], row["sis/accept_rate"])
            self.assertAlmostEqual(one["sis/d"], row["sis/d"], places=5)
        self.assertGreater(other[0][0][1]["sis/d"], 1e-3)
        for weight, value in ddp[0][1].items():
            self.assertLess((value - other[0][1][weight]).abs().max().item(), 1e-5, weight)
