"""Shared by the tests of TRL's trainers: settings, rewards, models, the loss in float64, a trainer, a real server."""

import contextlib
import copy
import functools
import math
import os
import unittest
import unittest.mock
import warnings

os.environ.update(HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
warnings.filterwarnings("ignore", message="TRL currently supports vLLM")

import tiny_model
import torch
import transformers
from datasets import Dataset
from peft import PeftModel, get_peft_model
from server.testing.live_server import LiveServer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.distributed.tensor import DTensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import maybe_gather_lm_head_ctx

from sis import MissingReason
from sis.integrations.trl import SisConfig, SisTrainerMixin

MIB = 1 << 20
VOCABULARY = tiny_model.VOCABULARY
DATASET = Dataset.from_list([{"prompt": f"tokens {number}"} for number in range(64)])


def reward(completions, **_):
    """Vowels. Random text has more or fewer, so groups differ."""
    texts = [completion if isinstance(completion, str) else str(completion) for completion in completions]
    return [sum(map(text.count, "aeiou")) / 10 for text in texts]


def settings(folder, **changed):
    return GRPOConfig(
        **{
            "output_dir": str(folder),
            "max_steps": 4,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 2,
            "num_iterations": 2,
            "num_generations": 4,
            "max_completion_length": 12,
            "learning_rate": 1e-3,
            "temperature": 0.9,
            "use_cpu": True,
            "bf16": False,
            "report_to": [],
            "logging_steps": 1,
            "save_strategy": "no",
            "disable_tqdm": True,
            "gradient_checkpointing": False,
            "vllm_max_model_length": 128,
            **changed,
        }
    )


class Watched(SisTrainerMixin, GRPOTrainer):
    """Looks at every micro-batch as it is trained on."""

    settings_of_run = {}

    def _sis_run_settings(self):
        return {**super()._sis_run_settings(), "log_prob_encoding": "float32", **self.settings_of_run}

    def _sis_decided(self, inputs, *given):
        decided = super()._sis_decided(inputs, *given)
        self.watch(inputs, decided)
        return decided

    def watch(self, inputs, decided):
        pass

    def _compute_loss(self, model, inputs):
        # No forward pass was made for what is not used; with beta it comes with the reference model's.
        assert ("old_per_token_logps" in inputs) == (self.beta != 0 or self._sis_config.sets == "trainer")
        before = {name: value.clone() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        loss = super()._compute_loss(model, inputs)
        # The trainer keeps them for the next iteration.
        assert set(inputs) == set(before), set(inputs) ^ set(before)
        assert all(torch.equal(inputs[name], value) for name, value in before.items())
        return loss


class OfAnotherEngine(Watched):
    """Rollouts of weights that are not the trainer's."""

    def _generate_single_turn(self, *arguments, **settings):
        exact = [parameter.detach().clone() for parameter in self.model.parameters()]
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1.1)
        try:
            return super()._generate_single_turn(*arguments, **settings)
        finally:
            with torch.no_grad():
                for parameter, before in zip(self.model.parameters(), exact):
                    parameter.copy_(before)


def whole(model):
    """Its parameters, gathered where FSDP2 or ZeRO-3 has split them: then every rank has to call it."""
    with maybe_gather_lm_head_ctx(*model.parameters()):
        return {
            name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
            for name, value in model.state_dict().items()
        }


def in_float64(model):
    """Returns a float64 copy with adapters, without the changes of TRL and of sharding. Call it like `whole`."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    # Copies the configuration, because a model keeps the given one; from_config would split the model with ZeRO-3.
    # Eager attention computes softmax in float32. With float64 masks it gives NaN where all is masked, as before a
    # shorter prompt.
    config = copy.deepcopy(base.config)
    config._attn_implementation = "sdpa"
    made = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
    if base is not model:
        made = get_peft_model(made, copy.deepcopy(model.peft_config["default"]))
    made = made.to(base.device).double()
    made.load_state_dict(whole(model))
    return made


def largest(so_far, *values):
    """The largest of it and all absolute values; NaN if one of them is."""
    return max([so_far, *(value.abs().max().item() for value in values)], key=lambda x: (math.isnan(x), x))


class InFloat64(Watched):
    """Compares the gradient of every micro-batch with that of the loss "cispo" over the whole vocabulary in float64.
    With a filter the loss is over the kept tokens, which are computed token by token."""

    limit = 1.5
    top_p = 1.0
    # Whether gradients are compared too: parameters that are split have parts of them.
    gradients = True
    # The numbers of the rollouts of each generation whose records are lost.
    lost = ()
    compared, most, most_acceptance, most_loss, mean_ratios = 0, 0.0, 0.0, 0.0, ()

    def _generate(self, prompts):
        if self.model.training:
            self.generating = in_float64(self.accelerator.unwrap_model(self.model))
        return super()._generate(prompts)

    def logits(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        length = inputs["completion_ids"].shape[1]
        return model(ids, attention_mask=mask).logits[:, -length - 1 : -1] / self.temperature

    def watch(self, inputs, decided):
        self.accepted, self.probabilities = decided.accepted, decided.probabilities

    def weights(self, ratio, a, advantages):
        """Returns the weights of tokens, [B, T]. a: their acceptance probabilities in float64."""
        return torch.where(self.accepted, 1.0, ratio).clamp(max=self.limit)

    def _compute_loss(self, model, inputs):
        advantages = inputs["advantages"]
        inputs = {**inputs, "advantages": torch.linspace(-1.0, 1.0, len(advantages), device=advantages.device)}
        # Before the forward pass, after which FSDP2 leaves parameters whole.
        double = in_float64(self.accelerator.unwrap_model(self.model))
        loss = super()._compute_loss(model, inputs)
        with torch.no_grad():
            q = self.logits(self.generating, inputs).softmax(-1)
            ordered = q.sort(dim=-1, descending=True)
            before = ordered.values.cumsum(-1) - ordered.values
            kept = torch.zeros_like(q, dtype=torch.bool).scatter(-1, ordered.indices, before < self.top_p)
            q = q.masked_fill(~kept, 0.0)
            q = q / q.sum(-1, keepdim=True)
        log_p = self.logits(double, inputs).masked_fill(~kept, -1e4).log_softmax(-1)
        with torch.no_grad():
            tokens = inputs["completion_ids"][..., None]
            w = torch.where(kept, log_p.exp() / q, 0.0)
            own = w.gather(-1, tokens)[..., 0]
            # Ratios in the recorded set, which may end before K.
            config, rank = self.sis_run.config, torch.arange(q.shape[-1], device=q.device)
            recorded = (before < (config.mass or torch.inf)) & (rank < config.top_k)
            of_set = w * torch.zeros_like(kept).scatter(-1, ordered.indices, recorded)
            a = of_set / of_set.amax(-1, keepdim=True)
            own_a = a.gather(-1, tokens)[..., 0]
            own_a[torch.isin(inputs["sis_rollout"], torch.tensor(self.lost, device=own_a.device))] = 0.0
            of_tokens = (own_a - self.probabilities)[inputs["completion_mask"].bool()]
            self.most_acceptance = largest(self.most_acceptance, of_tokens)
            weight = self.weights(own, own_a, inputs["advantages"][:, None])
        objective = weight * log_p.gather(-1, tokens)[..., 0]
        mask = inputs["completion_mask"]
        # Two micro-batches make a generation, and a step.
        count = inputs["num_items_in_batch"] / self.accelerator.num_processes
        total = -(objective * inputs["advantages"][:, None] * mask).sum() / count
        # TRL's other losses have the value of the weights alone.
        surrogate = -(weight * inputs["advantages"][:, None] * mask).sum() / count
        value = (total if self.loss_type == "cispo" else surrogate).item()
        self.most_loss = largest(self.most_loss, loss.detach() - value)
        if self.gradients:
            ours = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            theirs = torch.autograd.grad(total, list(double.parameters()))
            scale = largest(0.0, *theirs)
            self.most = largest(self.most, *((a - b) / scale for a, b in zip(ours, theirs)))
        self.compared += int(mask.sum())
        self.mean_ratios = (*self.mean_ratios, ((own * mask).sum() / mask.sum()).item())
        return loss


def tiny(kind, **changed):
    """A random model of an architecture of transformers, whose logits are of scale 3 or so."""
    torch.manual_seed(0)
    of_mamba = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16}
    config = getattr(transformers, f"{kind}Config")(
        **{
            "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "initializer_range": 0.37,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
            **(of_mamba if kind == "FalconH1" else {}), **changed,
        }
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def hundred_words():
    """A tokenizer of 100 tokens, which a record can hold all of."""
    words = {f"w{number}": number for number in range(100)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w3")),
        pad_token="w0",
        eos_token="w2",
        padding_side="left",
    )
    tokenizer.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer


@contextlib.contextmanager
def vllm_on_cpus():
    """Meanwhile TRL's own vLLM is of float32, which it passes no dtype on for, and of weights that TRL can load again,
    as oneDNN's packed ones are not."""
    import vllm._custom_ops

    made = functools.partial(vllm.LLM, dtype="float32", enforce_eager=True)
    with (
        unittest.mock.patch.object(vllm._custom_ops, "_supports_onednn", False),
        unittest.mock.patch("trl.generation.vllm_generation.LLM", made),
    ):
        yield


class TrainerCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        model = tiny_model.make_for(cls)
        cls.folder, cls.path = model.parent, str(model)
        cls.server = LiveServer(cache_bytes=64 * MIB)
        cls.addClassCleanup(cls.server.close)

    def trainer(self, kind=Watched, config=None, prompts=None, **changed):
        model = changed.pop("model", None) or AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32)
        extra = {
            name: changed.pop(name)
            for name in ("peft_config", "tools", "processing_class", "rollout_func")
            if name in changed
        }
        tokenizer = extra.pop("processing_class", None) or AutoTokenizer.from_pretrained(self.path, padding_side="left")
        made = kind(
            model=model,
            reward_funcs=reward,
            args=settings(self.folder / "out", **changed),
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]) if prompts else DATASET,
            processing_class=tokenizer,
            sis_config=config or SisConfig(self.server.address, run=self.id()),
            **extra,
        )
        self.addCleanup(made.sis_client.close)
        return made

    def of_a_hundred_words(self, kind=InFloat64, config=None, **changed):
        """A trainer of a model of so few tokens that a record can hold all, with the loss of InFloat64. It trains two
        updates of one generation."""
        return self.trainer(
            kind, config or SisConfig(self.server.address, top_k=100), processing_class=hundred_words(),
            prompts=[f"w{i} w5" for i in range(64)],
            **{
                "model": tiny("Qwen3", vocab_size=100), "max_steps": 2, "loss_type": "cispo",
                "epsilon_high": InFloat64.limit, "learning_rate": 1e-2, **changed,
            },
        )  # fmt: skip

    def check_in_float64(self, trainer):
        """Returns the logged rows of a training whose policies are equal at the first update."""
        rows = self.train(trainer)
        self.check_logged(trainer, rows)
        self.assertGreater(trainer.compared, 50)
        self.assertLess(trainer.most, 1e-4)
        self.assertLess(trainer.most_acceptance, 1e-3)
        self.assertAlmostEqual(trainer.mean_ratios[0], 1, places=4)
        self.assertLess(rows[0]["sis/d"], 1e-5)
        self.assertGreater(rows[1]["sis/d"], rows[0]["sis/d"])
        return rows

    def train(self, trainer):
        trainer.train()
        return [row for row in trainer.state.log_history if "sis/accept_rate" in row or "sis/missing" in row]

    def check_logged(self, trainer, rows):
        """Checks that the logged metrics are the server's counts over all ranks, and that every token has a record."""
        self.assertEqual(len(rows), trainer.state.global_step)
        for draw, row in enumerate(rows):
            step = trainer.sis_client.list_steps(trainer.sis_run, draws=[draw])[draw]
            totals = step.totals
            seen = totals.missing + totals.scored
            self.assertEqual((row["sis/missing"], row["sis/envelope_violations"]), (0, 0))
            for reason in set(MissingReason) - {MissingReason.UNSPECIFIED}:
                self.assertEqual(row[f"sis/missing_{reason.name.lower()}"], step.missing.get(reason, 0) / seen)
            self.assertAlmostEqual(row["sis/accept_rate"], totals.accept_rate, places=9)
            for name in ("d", "d_sis", "k3", "residual_mass", "log_envelope"):
                self.assertAlmostEqual(row[f"sis/{name}"], getattr(totals, f"mean_{name}"), places=9, msg=name)
            self.assertAlmostEqual(row["sis/expected_accept_rate"], totals.mean_expected_acceptance, places=9)
