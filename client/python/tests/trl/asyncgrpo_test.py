"""TRL's asynchronous trainer: its rollout worker, `vllm serve` over HTTP, and the real server. Run by tools/rl-test.

Its attention kernel needs a GPU: the same sums of PyTorch stand in its place. It also asks a GPU how fast it is.
"""

import collections
import contextlib
import os
import pathlib
import random
import types
import unittest
import unittest.mock

import accelerate
import numpy as np
import requests
import torch
import vllm_process
from accelerate.utils import DistributedType
from client.python.tests import snippets
from datasets import Dataset
from in_float64 import of_rule
from peft import LoraConfig
from server.testing.live_server import BINARY
from torch.distributed.tensor import DTensor
from trainer_case import TrainerCase, in_float64, largest, reward
from transformers import AutoModelForCausalLM, AutoTokenizer
from two_processes import meet
from trl.chat_template_utils import qwen3_chat_template
from trl.experimental.async_grpo import AsyncGRPOConfig, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_rollout_worker import (
    AsyncRolloutWorker,
    TurnRecord,
    _AsyncRolloutLoop,
    _chain_to_sequences,
)

from sis import Client, _entries, _errors
from sis.integrations.trl import SisConfig, _async_rollouts
from sis.integrations.trl._async_grpo import SisAsyncGRPOTrainer
from sis.integrations.trl._sampled import sampled
from sis._records import MissingReason, Slice
from sis._top_k import canonical

PROMPTS = Dataset.from_list([{"prompt": [{"role": "user", "content": f"tokens {n}"}]} for n in range(16)])


def varlen_attention(query, key, value, starts_q, starts_k, _longest_q, _longest_k, softmax_scale, causal, window_size):
    """flash_attn_varlen_func: of each segment the queries are the last of its keys."""
    assert causal and window_size == (-1, -1)
    groups = query.shape[1] // key.shape[1]
    made = []
    for q0, q1, k0, k1 in zip(starts_q, starts_q[1:], starts_k, starts_k[1:]):
        q, k, v = query[q0:q1].transpose(0, 1), key[k0:k1].transpose(0, 1), value[k0:k1].transpose(0, 1)
        k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        scores = (q @ k.transpose(1, 2) * softmax_scale).masked_fill(~seen, -torch.inf)
        made.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(made)


class FromDisk:
    """A WeightTransferProtocol. Keeps all policies, for all ranks, by their version less 1."""

    def __init__(self, address, folder, kept):
        self.address, self.folder, self.kept = address, folder, kept
        kept.mkdir(exist_ok=True)

    def init_weight_transfer(self):
        pass

    def pause(self):
        requests.post(f"{self.address}/pause", params={"mode": "keep"}, timeout=600).raise_for_status()

    def send_weights(self, iterator):
        vllm_process.load_weights(self.address, self.folder, self.keep(iterator))

    def keep(self, iterator):
        sent = [(name, value.clone()) for name, value in iterator]
        torch.save(dict(sent), self.kept / str(len(self.policies())))
        return sent

    def policies(self):
        return [torch.load(file) for file in sorted(self.kept.iterdir(), key=lambda file: int(file.name))]

    def resume(self):
        requests.post(f"{self.address}/resume", timeout=600).raise_for_status()

    def destroy(self):
        pass


class InFloat64(SisAsyncGRPOTrainer):
    """Compares the loss of every micro-batch and the gradient of every step, of all ranks, with those of TRL's loss
    with selected ratios, over the whole vocabulary, of each sample alone and in float64."""

    compared, most, most_recorded, most_acceptance, stale, newest, outward = 0, 0.0, 0.0, 0.0, 0, 0, 0
    # By name: since the last step, on this rank.
    theirs = None

    def _sis_run_settings(self):
        return {**super()._sis_run_settings(), "log_prob_encoding": "float32"}

    def _sis_decided(self, terms, *given):
        self.trained.update(terms.names())
        decided = super()._sis_decided(terms, *given)
        ratio = (decided.log_probs.detach() - decided.sampling).exp()
        self.decided = decided.accepted, decided.probabilities, ratio
        return decided

    def _sync_weight(self):
        if self._lora_sync:
            # TRL sends the adapter alone, by itself.
            self.model.merge_adapter()
            self.sent.keep(self._streaming_iter())
            self.model.unmerge_adapter()
        super()._sync_weight()

    def log_probs(self, model, ids):
        """[T - 1, V]: of the tokens after the first."""
        return (model(ids[None]).logits[0, :-1] / self.temperature).log_softmax(-1)

    def samples(self):
        """Returns the samples of this rank's next micro-batch. The main rank makes those of all ranks."""
        rows = [self.batches.popleft() if self.accelerator.is_main_process else None]
        if self.accelerator.num_processes > 1:
            torch.distributed.broadcast_object_list(rows)
        return rows[0][self.accelerator.process_index]

    def compute_loss(self, model, inputs, *args, **kwargs):
        double = in_float64(self.accelerator.unwrap_model(self.model))
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        plain = AutoModelForCausalLM.from_pretrained(self.path, attn_implementation="eager", dtype=torch.float64)
        total, first = 0.0, 0
        for sample in self.samples():
            ids, places = torch.from_numpy(sample["input_ids"]), np.flatnonzero(sample["completion_mask"][1:])
            log_p = self.log_probs(double, ids)[places]
            tokens = ids[places + 1][:, None]
            log_q = self.sampled_from(plain, ids, places, torch.from_numpy(sample["old_log_probs"][places + 1]))
            accepted, acceptance, rounded = (values[first : first + len(places)] for values in self.decided)
            first += len(places)
            ratio = (log_p - log_q).gather(1, tokens)[:, 0].exp()
            with torch.no_grad():
                # The recorded set is that of the sampler's most probable tokens.
                best = log_q.topk(self.sis_run.config.top_k).indices
                envelope = (log_p - log_q).gather(1, best).amax(1).exp()
                a = torch.where((best == tokens).any(1), ratio / envelope, 0.0)
                self.most_acceptance = largest(self.most_acceptance, a - acceptance)
            if self._sis_config.damped_truncation:
                with torch.no_grad():
                    # With equal policies only rounding decides which tokens are outward.
                    seen = torch.where((ratio - 1).abs() < 1e-5, rounded.double(), ratio)
                    weight = of_rule("damped_truncation", seen, a, torch.tensor(sample["advantage"]))
                total = total - (weight * ratio / ratio.detach() * sample["advantage"]).sum()
                self.outward += int((weight < seen.clamp(max=1)).sum())
                continue
            ratio = torch.where(accepted, ratio / ratio.detach(), ratio)
            clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
            total = total - torch.min(ratio * sample["advantage"], clipped * sample["advantage"]).sum()
        # The number over all ranks, whose gradients are averaged.
        everywhere = self.accelerator.reduce(torch.tensor(float(first)), reduction="sum")
        total = total / everywhere * self.accelerator.num_processes / self.current_gradient_accumulation_steps
        assert abs(loss.item() - total.item()) < 1e-4, (loss, total)
        self.compared += first
        learning = {name: value for name, value in double.named_parameters() if value.requires_grad}
        gradients = torch.autograd.grad(total, list(learning.values()))
        before = self.theirs or dict.fromkeys(learning, 0.0)
        self.theirs = {name: before[name] + gradient for name, gradient in zip(learning, gradients)}
        return loss

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients:
            model = self.accelerator.unwrap_model(self.model)
            ours = {name: value.grad for name, value in model.named_parameters() if value.requires_grad}
            ours = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in ours.items()}
            theirs = {name: self.accelerator.reduce(value, reduction="mean") for name, value in self.theirs.items()}
            assert ours.keys() == theirs.keys()
            scale = max(gradient.abs().max().item() for gradient in theirs.values())
            if scale:
                self.most = max([self.most, *((ours[name] - theirs[name]).abs().max().item() / scale for name in ours)])
                self.steps_compared += 1
            self.theirs = None
        return loss

    @torch.no_grad()
    def sampled_from(self, model, ids, places, told):
        """Returns [N, V]: for each token, the log-probs by the policy whose log-prob of the token equals `told`."""
        every = []
        for policy in self.sent.policies():
            model.load_state_dict(policy)
            every.append(self.log_probs(model, ids)[places])
        policies = torch.stack(every)
        own = policies.gather(2, ids[places + 1][None, :, None].expand(len(every), -1, 1))[..., 0]
        differences, version = (own - told).abs().min(0)
        self.most_recorded = largest(self.most_recorded, differences)
        self.stale += int((version < len(every) - 1).sum())
        self.newest = max(self.newest, version.max().item())
        return policies[version, torch.arange(len(places))]


@contextlib.contextmanager
def on_a_cpu():
    """Also yields where the samples of each micro-batch are noted, rank by rank: they are loaded ahead."""
    kernel = types.SimpleNamespace(flash_attn_varlen_func=varlen_attention)
    log, batches = async_grpo_trainer.DataCollatorForRollout._log_metrics, collections.deque()

    def noting(collator, rows, all_examples, padded):
        batches.append([row.samples for row in rows])
        log(collator, rows=rows, all_examples=all_examples, padded=padded)

    with (
        unittest.mock.patch.object(packing, "_flash_attn", lambda: kernel),
        unittest.mock.patch.object(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None),
        unittest.mock.patch.object(async_grpo_trainer.DataCollatorForRollout, "_log_metrics", noting),
    ):
        yield batches


def settings(folder, address, **changed):
    return AsyncGRPOConfig(
        **{
            "output_dir": str(folder / "out"), "max_steps": 3, "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2, "num_generations": 4, "max_completion_length": 12,
            "learning_rate": 1e-4, "temperature": 0.9, "token_budget": 0, "use_cpu": True, "bf16": False,
            "report_to": [], "save_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": False,
            "vllm_server_base_url": address, "vllm_server_timeout": 1500, "heartbeat_stale_after_s": 1500,
            **changed,
        }
    )  # fmt: skip


def trainer_of(path, port, folder, config, worker=None, peft_config=None, served=False, kind=InFloat64, **changed):
    """served: whether vLLM serves the adapter beside the model."""
    address = f"http://127.0.0.1:{port}"
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    tokenizer.chat_template = qwen3_chat_template
    sent = FromDisk(address, folder / "tiny", folder / f"policies-{config.run}")
    args = settings(folder, address, **changed)
    if args.fsdp:
        # Accelerate shards on every device but this one, for no reason of PyTorch's.
        accelerate.PartialState._shared_state["distributed_type"] = DistributedType.MULTI_NPU
    made = kind(
        model=path,
        reward_funcs=reward,
        args=args,
        train_dataset=PROMPTS,
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=None if served else sent,
        peft_config=peft_config,
        sis_config=config,
    )
    made.path, made.sent, made.trained, made.steps_compared = path, sent, set(), 0
    return made


def seen_by(trainer):
    """Returns the values that tests check."""
    names = ("compared", "steps_compared", "stale", "most", "most_recorded", "most_acceptance", "trained")
    rows = [row for row in trainer.state.log_history if "sis/d" in row]
    return types.SimpleNamespace(rows=rows, run=trainer.sis_run, **{name: getattr(trainer, name) for name in names})


def _rank(rank, name, path, port, address, folder):
    """One of two processes."""
    meet(rank, folder, name)
    sharded, adapters = "fsdp" in name, "adapters" in name
    changed = {"learning_rate": 1e-2} if adapters else {}
    if sharded:
        wrapped = {"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]}
        changed.update(fsdp=True, fsdp_config=wrapped)
    peft_config = LoraConfig(target_modules=["q_proj", "down_proj"]) if adapters else None
    config = SisConfig(address, run=name, top_k=64)
    with on_a_cpu() as batches:
        trainer = trainer_of(
            path, port, pathlib.Path(folder), config, peft_config=peft_config, per_device_train_batch_size=2, **changed
        )
        trainer.batches = batches
        trainer.train()
    parameters = trainer.accelerator.unwrap_model(trainer.model).parameters()
    assert {isinstance(value, DTensor) for value in parameters} == {sharded}
    torch.save(seen_by(trainer), f"{folder}/{name}-{rank}")
    trainer.sis_client.close()
    torch.distributed.destroy_process_group()


def _refused_rank(rank, path, address, folder):
    """As of _rank, where the main one alone has a rollout worker."""
    meet(rank, folder, "refused")
    worker = unittest.mock.MagicMock() if rank == 0 else None
    with on_a_cpu():
        try:
            trainer_of(path, 1, pathlib.Path(folder), SisConfig(address, run="refused"), worker)
        except Exception as error:
            (pathlib.Path(folder) / f"refused-{rank}").write_text(f"{type(error).__name__}: {error}")
    torch.distributed.destroy_process_group()


class AsyncgrpoTest(TrainerCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.port = vllm_process.start(
            cls, cls.folder, ["vllm", "serve", cls.path],
            "--dtype", "float32", "--enforce-eager", "--max-model-len", "128", "--max-logprobs", "-1",
            "--logprobs-mode", "processed_logprobs", VLLM_SERVER_DEV_MODE="1",
        )  # fmt: skip
        cls.batches = cls.enterClassContext(on_a_cpu())

    def trainer(self, config, worker=None, port=None, **changed):
        made = trainer_of(self.path, port or self.port, self.folder, config, worker, **changed)
        self.addCleanup(made.sis_client.close)
        # Discards samples that another trainer loaded ahead.
        self.batches.clear()
        made.batches = self.batches
        return made

    def test_trains(self):
        """K above vLLM's own limit; loss and acceptance beside those in float64, of the policies that there
        were."""
        trainer = self.trainer(SisConfig(self.server.address, run=self.id(), top_k=64))
        rows = self.train(trainer)
        self.check_logged(trainer, rows)
        self.assertGreater(trainer.stale, 50)
        self.check([seen_by(trainer)], trainer.sis_client)
        status = trainer.sis_client.get_run(trainer.sis_run.id)
        self.assertEqual(status.policy_version, trainer.model_version)

    def test_the_page(self):
        """It ends before weights travel, which takes NCCL and a GPU."""
        args = settings(self.folder, f"http://127.0.0.1:{self.port}")
        here = {"name": self.path, "reward": reward, "args": args, "dataset": PROMPTS}
        with unittest.mock.patch.dict(os.environ, PATH=f"{BINARY.parent}:{os.environ['PATH']}"):
            snippets.run("trl", 4, here)
        client, run = here["trainer"].sis_client, here["trainer"].sis_run
        self.assertEqual(client.get_run(run.id).run, run)
        client.close()

    def test_filters(self):
        """Ratios are of the tokens that rollouts keep."""
        config = SisConfig(self.server.address, run=self.id(), top_k=64)
        trainer = self.trainer(config, kind=SisAsyncGRPOTrainer, top_p=0.8, top_k=40, max_steps=1)
        (row,) = self.train(trainer)
        self.assertEqual((row["sis/missing"], row["sis/incomplete"]), (0, 0))
        self.assertLess(row["sis/d"], 1e-5)

    def test_damped_truncation(self):
        trainer = self.trainer(SisConfig(self.server.address, run=self.id(), top_k=64, damped_truncation=True))
        self.train(trainer)
        self.check([seen_by(trainer)], trainer.sis_client)
        self.assertGreater(trainer.outward, 20)

    def check(self, ranks, client):
        rows, run = ranks[0].rows, ranks[0].run
        self.assertEqual([row["sis/missing"] for row in rows], [0] * 3)
        self.assertEqual([row["sis/envelope_violations"] for row in rows], [0] * 3)
        # Before the first update all policies are one, and only what is outside the set is not accepted.
        self.assertLess(rows[0]["sis/d"], 1e-5)
        self.assertGreater(rows[0]["sis/accept_rate"], 0.5)
        self.assertGreater(rows[2]["sis/d"], 1e-3)
        self.assertNotIn(_async_rollouts.SEQUENCE, rows[0])
        for rank in ranks:
            self.assertGreater(rank.compared, 50)
            self.assertEqual(rank.steps_compared, 3)
            self.assertLess(rank.most_recorded, 1e-4)
            self.assertLess(rank.most_acceptance, 1e-3)
            self.assertLess(rank.most, 1e-3)
        trained = [name for rank in ranks for name in rank.trained]
        # No sample is on two ranks.
        self.assertEqual((len(trained), len(set(trained))), (24, 24))
        for name in trained:
            (missing,) = client.fetch_top_k(run, [Slice(name)]).missing
            self.assertEqual(missing.reason, MissingReason.RELEASED)

    def test_two_ranks(self):
        for name in ("ddp-adapters", "fsdp", "fsdp-adapters"):
            with self.subTest(name):
                # Where one fails, the other is ended.
                rank = (name, self.path, self.port, self.server.address, str(self.folder))
                torch.multiprocessing.spawn(_rank, rank, nprocs=2)
                ranks = [torch.load(self.folder / f"{name}-{rank}", weights_only=False) for rank in (0, 1)]
                with Client(self.server.address) as client:
                    state = types.SimpleNamespace(global_step=3)
                    told = types.SimpleNamespace(state=state, sis_client=client, sis_run=ranks[0].run)
                    self.check_logged(told, ranks[0].rows)
                    self.check(ranks, client)

    def test_adapters_that_vllm_serves(self):
        """Each policy under a name of its own, which requests say."""
        port = vllm_process.start(
            type(self), self.folder / "served", ["vllm", "serve", self.path],
            "--dtype", "float32", "--enforce-eager", "--max-model-len", "128", "--max-logprobs", "-1",
            "--logprobs-mode", "processed_logprobs", "--enable-lora", "--max-lora-rank", "8", "--max-loras", "3",
            VLLM_SERVER_DEV_MODE="1", VLLM_ALLOW_RUNTIME_LORA_UPDATING="1",
        )  # fmt: skip
        adapters = LoraConfig(target_modules=["q_proj", "down_proj"])
        config = SisConfig(self.server.address, run=self.id(), top_k=64)
        trainer = self.trainer(
            config, port=port, peft_config=adapters, served=True, learning_rate=1e-2, max_staleness=1
        )
        self.assertTrue(trainer._lora_sync)
        rows = self.train(trainer)
        self.check_logged(trainer, rows)
        self.check([seen_by(trainer)], trainer.sis_client)
        # The first is the model alone.
        self.assertGreater(trainer.newest, 0)

    def test_versions_of_requests(self):
        loop = types.SimpleNamespace(lora_name=None, model_version=7)
        self.assertEqual(_async_rollouts.SisRolloutLoopMixin._sis_version(loop, "model-v3"), 7)
        loop.lora_name = "trl-policy"
        # A request that is repeated, as TRL does, asks for what it asked for.
        self.assertEqual(_async_rollouts.SisRolloutLoopMixin._sis_version(loop, "trl-policy-v3"), 3)

    def test_cut_turns(self):
        """However TRL cuts and joins turns, each trained token has its own record."""
        random.seed(0)
        generator = np.random.default_rng(0)
        for _ in range(200):
            turns, prompt = [], [1, 2, 3]
            for version in range(random.randint(1, 4)):
                count = random.randint(1, 6)
                log_probs = -np.sort(generator.exponential(size=(count, 4)).astype(np.float32) + 2)
                tokens = generator.integers(0, 64, count)
                ids = (tokens[:, None] + np.arange(4)) % 64
                record = canonical(ids, log_probs, tokens, log_probs[:, 0], 4)
                turns.append(TurnRecord(prompt, tokens.tolist(), sampled(record, version)))
                prompt = [*prompt, *tokens.tolist()]
                # Rewrites the prompt with other tokens for the last ones, or for all.
                drift = random.choice([0, 0, 1, 2, len(prompt)])
                prompt = [*prompt[: len(prompt) - drift], *([63] * random.randint(1, 3))]
            sequences, _tally = _chain_to_sequences(turns, "rollout", 4)
            for row in sequences:
                mask = np.asarray(row.completion_mask)
                begin = int(mask.argmax())
                made = _async_rollouts._entries_of_row("name", row)
                blocks = [entry for entry in made if isinstance(entry, _entries.Block)]
                covered = {}
                for block in blocks:
                    for index, token in enumerate(block.sampled_ids):
                        covered[begin + block.first_position + index] = (token, block.sampled_log_probs[index])
                        self.assertEqual(block.top_k_log_probs.shape[1], 4)
                        self.assertIn(token, block.top_k_ids[index])
                expected = {
                    int(place): (row.input_ids[place], row.old_log_probs[place]) for place in np.flatnonzero(mask)
                }
                self.assertEqual(covered, expected)

    def test_refused(self):
        with self.assertRaisesRegex(ValueError, "sets is 'trainer': .*Set it to 'engine'"):
            self.trainer(SisConfig(self.server.address, sets="trainer"))

        class Other(_AsyncRolloutLoop):
            pass

        worker = AsyncRolloutWorker()
        worker._loop_cls = Other
        with self.assertRaisesRegex(ValueError, "loop is Other: give it sis.integrations.trl.SisRolloutLoopMixin"):
            self.trainer(SisConfig(self.server.address, run=self.id()), worker)

    def test_what_one_rank_refuses_ends_all(self):
        torch.multiprocessing.spawn(_refused_rank, (self.path, self.server.address, str(self.folder)), nprocs=2)
        main, other = ((self.folder / f"refused-{rank}").read_text() for rank in (0, 1))
        self.assertRegex(main, "^ValueError: rollout_worker is a MagicMock.*AsyncRolloutWorker")
        self.assertEqual(other, f"RuntimeError: the first rank failed: {main}")
        with Client(self.server.address) as client, self.assertRaises(_errors.NotFound):
            client.get_run("refused")


if __name__ == "__main__":
    unittest.main()
