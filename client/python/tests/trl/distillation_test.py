"""TRL's DistillationTrainer with teachers whose log-probs the real server keeps: run by tools/rl-test."""

import os
import pathlib
import tempfile
import unittest

os.environ.update(HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import accelerate
import numpy as np
import torch
from accelerate.utils import DistributedType
from client.study.language_model import weights
from datasets import Dataset
from peft import LoraConfig
from server.testing.live_server import LiveServer
from torch.distributed.tensor import DTensor
from trainer_case import MIB, hundred_words, in_float64, largest, tiny, whole
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DistillationConfig, DistillationTrainer

import sis
from sis.engines.teachers import Scored, VllmTeacher
from sis.trl import SisConfig
from sis.trl.distillation import SisDistillationMixin, SisDistillationTrainer

ADDRESS = "127.0.0.1:1"


def settings(folder, **changed):
    return DistillationConfig(
        **{
            "output_dir": str(folder), "max_steps": 2, "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2, "max_completion_length": 12, "learning_rate": 1e-3, "use_cpu": True,
            "bf16": False, "report_to": [], "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True,
            "gradient_checkpointing": False, **changed,
        }
    )  # fmt: skip


def teacher_of(model, told=None):
    """Says what the model thinks, but for the tokens told(response): then it is silent."""

    @torch.no_grad()
    def teacher(prompts, responses, top_k):
        scored = []
        for prompt, response in zip(prompts, responses):
            every = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
            present = np.ones(len(response), bool) if told is None else told(response)
            top = every[present].topk(top_k)
            own = torch.tensor(response)[present]
            of_own = every[present].gather(1, own[:, None])[:, 0]
            scored.append(Scored(present, sis.canonical(top.indices, top.values, own, of_own, top_k)))
        return scored

    return teacher


def divergence(log_p, log_q, top_k, beta):
    """[..., V] of student and teacher, in float64: of the teacher's top_k tokens and one for all others, and
    over the vocabulary."""
    kl = lambda p, q: (p.exp() * (p - q)).sum(-1)
    best = log_q.topk(top_k).indices

    def coarse(log_probs):
        kept = log_probs.gather(-1, best)
        rest = (1 - kept.exp().sum(-1, keepdim=True)).clamp(min=1e-30).log()
        return torch.cat([kept, rest], -1) if top_k < log_probs.shape[-1] else kept

    def of(p, q):
        if beta in (0, 1):
            return kl(q, p) if beta == 0 else kl(p, q)
        m = (beta * q.exp() + (1 - beta) * p.exp()).log()
        return beta * kl(q, m) + (1 - beta) * kl(p, m)

    return of(coarse(log_p), coarse(log_q)), of(log_p, log_q)


class Compared(SisDistillationMixin, DistillationTrainer):
    """Compares the loss of every micro-batch and the gradient of every step, of all ranks, with those of float64,
    made of the teachers' whole distributions."""

    # By name: model, weight, and told of teacher_of.
    against = {}
    compared, most_loss, most_gradient, below = 0, 0.0, 0.0, True
    # By name: since the last step, on this rank.
    theirs = None

    def _compute_loss(self, *arguments):
        returned = super()._compute_loss(*arguments)
        self.entropies = returned[1].double()
        return returned

    def compute_loss(self, model, inputs, *args, **kwargs):
        if not self.model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        double = in_float64(self.accelerator.unwrap_model(self.model))
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        length = inputs["completion_ids"].shape[1]
        log_p = double(ids, attention_mask=attended).logits[:, -length - 1 : -1].log_softmax(-1)
        mask = inputs["completion_mask"].bool()
        want = 0
        for name, (model, weight, told) in self.against.items():
            counts = mask.clone()
            for row, tokens in enumerate(inputs["completion_ids"]):
                prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].tolist()
                counts[row] &= bool(self.for_teacher(prompt, name))
                if told is not None:
                    counts[row] &= torch.from_numpy(told(tokens.tolist()))
            with torch.no_grad():
                log_q = model(ids, attention_mask=attended).logits[:, -length - 1 : -1].double().log_softmax(-1)
            coarse, exact = divergence(log_p, log_q, self._sis_config.top_k, self.beta)
            self.below &= bool((coarse <= exact + 1e-9)[counts].all())
            want = want + weight * (coarse * counts).sum()
            self.compared += int(counts.sum())
        want = want / inputs["num_items_in_batch"] * self.accelerator.num_processes
        learning = {name: value for name, value in double.named_parameters() if value.requires_grad}
        gradients = torch.autograd.grad(want, list(learning.values()))
        before = self.theirs or dict.fromkeys(learning, 0.0)
        self.theirs = {name: before[name] + gradient for name, gradient in zip(learning, gradients)}
        self.most_loss = largest(self.most_loss, (loss - want) / want)
        entropy = -(log_p.exp() * log_p).sum(-1)[mask].sum()
        torch.testing.assert_close(self.entropies, entropy.detach(), rtol=1e-4, atol=0)
        return loss

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients:
            self.compare_gradients()
        return loss

    def compare_gradients(self):
        model = self.accelerator.unwrap_model(self.model)
        ours = {name: value.grad for name, value in model.named_parameters() if value.requires_grad}
        ours = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in ours.items()}
        theirs = {name: self.accelerator.reduce(value, reduction="mean") for name, value in self.theirs.items()}
        assert ours.keys() == theirs.keys()
        scale = largest(0.0, *theirs.values())
        self.most_gradient = largest(self.most_gradient, *((ours[name] - theirs[name]) / scale for name in ours))
        self.theirs = None

    def for_teacher(self, prompt, name):
        return True


class Routed(Compared):
    """The prompts' second word says whose they are."""

    def for_teacher(self, prompt, name):
        return name == ("even" if prompt[1] % 2 == 0 else "odd")


class DistillationTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.server = LiveServer(cache_bytes=256 * MIB)
        cls.addClassCleanup(cls.server.close)

    def models(self, *seeds):
        made = []
        for seed in seeds:
            model = tiny("Qwen3", vocab_size=100)
            torch.manual_seed(seed)
            model.init_weights()
            for parameter in model.parameters():
                parameter.data += 0.05 * torch.randn_like(parameter)
            made.append(model)
        return made

    def trainer(self, kind, student, teachers, dataset=None, config=None, weights=None, **changed):
        made = kind(
            model=student,
            args=settings(self.folder / "out", **changed),
            train_dataset=dataset or Dataset.from_list([{"prompt": f"w{n % 90} w{n} w5"} for n in range(3, 67)]),
            processing_class=hundred_words(),
            teachers=teachers,
            teacher_weights=weights,
            sis_config=config or SisConfig(self.server.address, run=self.id(), top_k=100),
        )
        self.addCleanup(made.sis_client.close)
        return made

    def check_compared(self, trainer):
        self.assertGreater(trainer.compared, 100)
        self.assertTrue(trainer.below)
        self.assertLess(trainer.most_loss, 1e-4)
        self.assertLess(trainer.most_gradient, 1e-3)

    def test_of_the_whole_vocabulary_it_is_the_divergence(self):
        for beta, metric in ((0.0, "kl"), (1.0, "kl"), (0.3, "jsd")):
            with self.subTest(beta=beta):
                student, one = self.models(1, 2)
                config = SisConfig(self.server.address, run=f"whole-{beta}", top_k=100)
                trainer = self.trainer(Compared, student, {"one": teacher_of(one)}, config=config, beta=beta)
                trainer.against = {"one": (one, 1.0, None)}
                trainer.train()
                self.check_compared(trainer)
                rows = [row for row in trainer.state.log_history if f"sis/one/{metric}" in row]
                self.assertEqual([row["sis/one/missing"] for row in rows], [0, 0])
                # TRL's loss is the mean over the tokens of a step, and so is what is logged.
                for row in rows:
                    self.assertAlmostEqual(row[f"sis/one/{metric}"], row["loss"], delta=2e-3 * row["loss"])
                # Nothing is left on the server.
                run = trainer.sis_client.get_run(f"whole-{beta}-one")
                self.assertEqual(run.sequences, 0)

    def test_it_is_trls_own_loss(self):
        for beta in (1.0, 0.3):
            with self.subTest(beta=beta):
                self.check_own_loss(beta)

    def check_own_loss(self, beta):
        student, one = self.models(1, 2)
        differences = []

        class Own(SisDistillationTrainer):
            def _compute_loss(self, student, inputs, num_items_in_batch):
                returned = super()._compute_loss(student, inputs, num_items_in_batch)
                self.teacher_model = one
                own = DistillationTrainer._compute_loss(self, student, inputs, num_items_in_batch)
                self.teacher_model = None
                differences.append([abs((a - b) / b).item() for a, b in zip(returned, own)])
                return returned

        config = SisConfig(self.server.address, run=f"own-{beta}", top_k=100)
        self.trainer(Own, student, {"one": teacher_of(one)}, config=config, beta=beta).train()
        self.assertEqual(len(differences), 4)
        self.assertLess(np.max(differences), 1e-4)

    def test_of_some_tokens_the_others_count_as_one(self):
        for beta in (0.0, 1.0, 0.3):
            with self.subTest(beta=beta):
                student, one = self.models(1, 2)
                config = SisConfig(self.server.address, run=f"some-{beta}", top_k=12)
                trainer = self.trainer(Compared, student, {"one": teacher_of(one)}, config=config, beta=beta)
                trainer.against = {"one": (one, 1.0, None)}
                trainer.train()
                self.check_compared(trainer)

    def test_several_teachers_of_whom_one_is_silent_now_and_then(self):
        student, one, two = self.models(1, 2, 3)
        told = lambda response: np.asarray(response) % 3 != 0
        trainer = self.trainer(
            Compared, student, {"one": teacher_of(one), "two": teacher_of(two, told)}, weights={"two": 0.5}
        )
        trainer.against = {"one": (one, 1.0, None), "two": (two, 0.5, told)}
        trainer.train()
        self.check_compared(trainer)
        last = [row for row in trainer.state.log_history if "sis/two/kl" in row][-1]
        self.assertEqual(last["sis/one/missing"], 0)
        self.assertTrue(0.1 < last["sis/two/missing"] < 0.6, last)

    def test_a_prompt_has_the_teacher_that_its_row_names(self):
        student, one, two = self.models(1, 2, 3)
        dataset = Dataset.from_list(
            [{"prompt": f"w5 w{n}", "teacher": "even" if n % 2 == 0 else "odd"} for n in range(30, 94)]
        )
        trainer = self.trainer(Routed, student, {"even": teacher_of(one), "odd": teacher_of(two)}, dataset)
        trainer.against = {"even": (one, 1.0, None), "odd": (two, 1.0, None)}
        trainer.train()
        self.check_compared(trainer)
        unknown = Dataset.from_list([{"prompt": "w5", "teacher": "none"}] * 16)
        with self.assertRaisesRegex(ValueError, "'none', which is none of"):
            self.trainer(SisDistillationTrainer, student, {"even": teacher_of(one)}, unknown).train()

    def test_two_ranks(self):
        """Each asks the teacher of its own rollouts; gradients and metrics are of both."""
        for kind in ("ddp", "fsdp", "fsdp-adapters"):
            with self.subTest(kind):
                torch.multiprocessing.spawn(_rank, (kind, self.server.address, str(self.folder)), nprocs=2)
                self.check_ranks(*(torch.load(self.folder / f"{kind}-{rank}") for rank in range(2)))

    def check_ranks(self, first, second):
        self.assertGreater(first["compared"] + second["compared"], 100)
        self.assertLess(max(first["most_loss"], second["most_loss"]), 1e-4)
        self.assertLess(max(first["most_gradient"], second["most_gradient"]), 1e-3)
        for name, value in first["weights"].items():
            self.assertTrue(torch.equal(value, second["weights"][name]), name)
        self.assertEqual(len(first["rows"]), 2)
        # Of the positions of all, which are more than those of one.
        for mine, other, row in zip(first["sums"], second["sums"], first["rows"], strict=True):
            kl = (mine[0] + other[0]) / (mine[1] + other[1])
            self.assertAlmostEqual(row["sis/one/kl"], kl, places=5)
            self.assertAlmostEqual(row["loss"], kl, delta=2e-3 * kl)
            self.assertEqual(row["sis/one/missing"], 0)

    def test_without_a_server_nothing_is_learned(self):
        student, one = self.models(1, 2)
        server = LiveServer(cache_bytes=16 * MIB)
        self.addCleanup(server.close)
        config = SisConfig(server.address, run="lost", top_k=100)
        before = {name: value.clone() for name, value in student.named_parameters()}

        class Lost(SisDistillationTrainer):
            def _generate_and_score_completions(self, inputs):
                server.close()
                return super()._generate_and_score_completions(inputs)

        trainer = self.trainer(Lost, student, {"one": teacher_of(one)}, config=config, max_steps=1)
        with self.assertWarnsRegex(RuntimeWarning, "training goes on"):
            trainer.train()
        self.assertEqual(trainer.state.log_history[0]["sis/one/missing"], 1)
        for name, value in trainer.model.named_parameters():
            self.assertTrue(torch.equal(value, before[name]), name)

    def test_evaluation(self):
        student, one = self.models(1, 2)
        trainer = self.trainer(Compared, student, {"one": teacher_of(one)})
        found = trainer.evaluate(Dataset.from_list([{"prompt": "w5 w6"}] * 8))
        self.assertGreater(found["eval_sis/one/kl"], 0.1)
        self.assertEqual(found["eval_sis/one/missing"], 0)

    def test_what_is_refused(self):
        student, one = self.models(1, 2)
        teachers = {"one": teacher_of(one)}
        # Before a model is loaded, or a server asked.
        for message, changed, config in (
            ("temperature is 0.7", {"temperature": 0.7}, SisConfig(ADDRESS)),
            ("DistillationTrainer, unlike GRPOTrainer.*Set it to False", {"use_liger_kernel": True}, SisConfig(ADDRESS)),
            ("score_centering is of importance ratios", {}, SisConfig(ADDRESS, score_centering=True)),
            ("sets is of importance ratios", {}, SisConfig(ADDRESS, sets="trainer")),
        ):
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                self.trainer(SisDistillationTrainer, None, teachers, config=config, **changed)
        with self.assertRaisesRegex(ValueError, "teacher_weights names \\['two'\\], which are no teachers"):
            self.trainer(SisDistillationTrainer, None, teachers, weights={"two": 1.0})
        with self.assertRaisesRegex(ValueError, "run is 'a/b'"):
            self.trainer(SisDistillationTrainer, None, {"a/b": teachers["one"]})

        def shifted(prompts, responses, top_k):
            return teachers["one"](prompts, [[*response[1:], 7] for response in responses], top_k)

        with self.assertRaisesRegex(ValueError, "teacher 'one', response 0: what it says is of other tokens"):
            self.trainer(SisDistillationTrainer, student, {"one": shifted}).train()

    def test_smollm2_teaches_a_smaller_random_student(self):
        import vllm

        path = str(self.folder / "smollm2")
        weights.main(path)
        tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
        llm = vllm.LLM(path, dtype="float32", enforce_eager=True, max_model_len=128, max_logprobs=-1, disable_log_stats=True)
        asked = VllmTeacher(llm)
        double = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
        vocabulary = double.config.vocab_size
        student = tiny(
            "Llama", vocab_size=vocabulary, initializer_range=0.05, tie_word_embeddings=True,
            bos_token_id=1, eos_token_id=2, pad_token_id=2,
        )  # fmt: skip
        texts = [f"The number {n} is" for n in range(64)]
        held_out = [tokenizer(f"The colour of {what} is").input_ids for what in ("snow", "grass", "the sky", "blood")]
        told = {}

        def teacher(prompts, responses, top_k):
            scored = asked(prompts, responses, top_k)
            told.update({(*prompt, *response): one for prompt, response, one in zip(prompts, responses, scored)})
            return scored

        @torch.no_grad()
        def whole_kl(model):
            """KL(teacher || student) over the vocabulary, at the held-out prompts' tokens."""
            values = []
            for prompt in held_out:
                ids = torch.tensor([prompt])
                log_p, log_q = (of(ids).logits[0].double().log_softmax(-1) for of in (model, double))
                values.append((log_q.exp() * (log_q - log_p)).sum(-1))
            return torch.cat(values).mean().item()

        before = whole_kl(student)
        trainer = SisDistillationTrainer(
            model=student,
            args=settings(
                self.folder / "smollm2-out", max_steps=12, gradient_accumulation_steps=1, per_device_train_batch_size=8,
                max_completion_length=16, learning_rate=1e-2, beta=0.0, lr_scheduler_type="constant",
            ),
            train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
            processing_class=tokenizer,
            teachers={"smollm2": teacher},
            sis_config=SisConfig(self.server.address, run="smollm2", top_k=100),
        )  # fmt: skip
        self.addCleanup(trainer.sis_client.close)
        trainer.train()
        after = whole_kl(trainer.model)
        logged = [row["sis/smollm2/kl"] for row in trainer.state.log_history if "sis/smollm2/kl" in row]
        print(f"{self.id()}: KL over the vocabulary {before:.3f} -> {after:.3f}, logged {logged[0]:.3f} -> {logged[-1]:.3f}")
        self.assertEqual(len(logged), 12)
        self.assertLess(logged[-1], 0.7 * logged[0])
        self.assertLess(after, 0.9 * before)

        # What the engine tells, against the same weights in float64: the law with a tail, and over the
        # vocabulary.
        for tokens, (present, record) in list(told.items())[:4]:
            self.assertTrue(present.all())
            place = len(tokens) - len(present) - 1
            ids = torch.tensor([tokens])
            with torch.no_grad():
                log_p = trainer.model(ids).logits[0, place:-1].double().log_softmax(-1)
                log_q = double(ids).logits[0, place:-1].log_softmax(-1)
            arrays = {"ids": record.top_k_ids, "log_probs": record.top_k_log_probs, "sampled_ids": record.sampled_ids}
            records = sis.TopKRecords((sis.Slice("s", length=len(present)),), arrays, (), 0)
            current = sis.torch.log_probs_at(records, log_p)
            for beta, function in ((0, sis.torch.forward_kl), (1, sis.torch.reverse_kl)):
                values = function(records, current).values
                coarse, exact = divergence(log_p, log_q, 100, beta)
                torch.testing.assert_close(values, coarse, rtol=1e-3, atol=1e-3)
                self.assertTrue((values <= exact + 1e-3).all())
                self.assertGreater(exact.mean(), 0.1)


def _rank(rank, kind, address, folder):
    """One of two processes, as a launcher starts them, but that they meet in a file: a port could be taken meanwhile."""
    sharded, adapters = "fsdp" in kind, "adapters" in kind
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{kind}.store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    student, one = DistillationTest().models(1, 2)
    sums = []

    class Kept(Compared):
        def _sis_log(self):
            own = self._sis_sums["one"]
            if self.accelerator.sync_gradients:
                sums.append((own.divergence, own.scored))
            super()._sis_log()

    wrapped = {"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]}
    args = settings(pathlib.Path(folder) / kind, **({"fsdp": True, "fsdp_config": wrapped} if sharded else {}))
    if sharded:
        # Accelerate shards on every device but this one, for no reason of PyTorch's.
        accelerate.PartialState._shared_state["distributed_type"] = DistributedType.MULTI_NPU
    trainer = Kept(
        model=student,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": f"w{n % 90} w{n} w5"} for n in range(3, 67)]),
        processing_class=hundred_words(),
        teachers={"one": teacher_of(one)},
        peft_config=LoraConfig(target_modules=["q_proj", "down_proj"]) if adapters else None,
        sis_config=SisConfig(address, run=kind, top_k=100),
    )
    trainer.against = {"one": (one, 1.0, None)}
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    assert {isinstance(value, DTensor) for value in model.parameters()} == {sharded}
    rows = [row for row in trainer.state.log_history if "sis/one/kl" in row]
    told = {name: getattr(trainer, name) for name in ("compared", "most_loss", "most_gradient")}
    torch.save({**told, "sums": sums, "rows": rows, "weights": whole(model)}, f"{folder}/{kind}-{rank}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
