"""Training in two processes over gloo. Compares each micro-batch with float64."""

import os
import pathlib

import accelerate
import torch
from accelerate.utils import DistributedType
from peft import LoraConfig
from torch.distributed.tensor import DTensor
from trainer_case import DATASET, TrainerCase, Watched, in_float64, largest, reward, settings, whole
from transformers import AutoModelForCausalLM, AutoTokenizer

from sis.integrations.trl import SisConfig

LIMIT = 1.5
# Settings of a training with filtered rollouts and records of the whole policy.
OWN_SETS = {"config": {"sets": "trainer"}, "top_k": 5}


class Compared(Watched):
    """Compares the loss of every micro-batch with that of "cispo" in float64, of the gathered parameters. With sets of
    the trainer old log-probs and acceptance probabilities too, with those of the parameters that generated."""

    most, micro_batches = 0.0, 0

    def _generate(self, prompts):
        self.generating = in_float64(self.accelerator.unwrap_model(self.model))
        return super()._generate(prompts)

    def _sis_old_log_probs(self, inputs, decided):
        self.accepted, self.probabilities = decided.accepted, decided.probabilities
        return super()._sis_old_log_probs(inputs, decided)

    def log_probs(self, model, inputs):
        """[B, T, V]."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        length = inputs["completion_ids"].shape[1]
        return (model(ids, attention_mask=mask).logits[:, -length - 1 : -1] / self.temperature).log_softmax(-1)

    @torch.no_grad()
    def _compute_loss(self, model, inputs):
        double = in_float64(self.accelerator.unwrap_model(self.model))
        with torch.enable_grad():
            loss = super()._compute_loss(model, inputs)
        mask, tokens = inputs["completion_mask"], inputs["completion_ids"][..., None]
        every = self.log_probs(double, inputs)
        log_p, old = every.gather(-1, tokens)[..., 0], inputs["sampling_per_token_logps"].double()
        if self._sis_config.sets == "trainer":
            q = self.log_probs(self.generating, inputs)
            old, recorded = q.gather(-1, tokens)[..., 0], q.topk(self.sis_run.config.top_k)
            ratios = every.gather(-1, recorded.indices) - recorded.values
            a = (ratios - ratios.amax(-1, keepdim=True)).exp() * (recorded.indices == tokens)
            assert largest(0.0, ((a.sum(-1) - self.probabilities) * mask)) < 1e-3
        weight = torch.where(self.accepted, 1.0, (log_p - old).exp()).clamp(max=LIMIT)
        terms = weight * log_p * inputs["advantages"][:, None] * mask
        count = inputs["num_items_in_batch"] / self.accelerator.num_processes
        theirs = -(terms.sum() / count).item()
        self.most = largest(self.most, (loss - theirs) / (terms.abs().sum() / count))
        self.micro_batches += 1
        return loss


def meet(rank, folder, name):
    """Two processes, as a launcher starts them, but that they meet in a file: a port could be taken meanwhile."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{name}.store", rank=rank, world_size=2)
    torch.set_num_threads(1)


def _rank(rank, trainings, path, address, folder):
    """One of two."""
    meet(rank, folder, "-".join(trainings))
    for name, changed in trainings.items():
        torch.save(_trained(name, path, address, pathlib.Path(folder), **changed), f"{folder}/{name}-{rank}")
    torch.distributed.destroy_process_group()


def _trained(name, path, address, folder, adapters=False, config=None, **changed):
    """Trains. Returns the logged steps, the parameters, the number of split ones, and the results of Compared."""
    args = settings(
        folder / name, optim="sgd", learning_rate=0.1, max_steps=4, loss_type="cispo", epsilon_high=LIMIT,
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
