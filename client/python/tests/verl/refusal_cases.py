"""verl's settings that are wrong with SIS, and refused."""

import pathlib
import unittest.mock

import torch
from training_worker import batch, detach, rollout
from verl_case import K, VerlCase

from sis.integrations.verl import attach
from sis.integrations.verl._settings import check_training


class VerlRefusalTest(VerlCase):
    def test_refuses_what_would_be_wrong(self):
        samples = rollout(self.coarse, 8, K, 6)
        self.attached(self.settings())
        data = batch(samples)
        data.pop("rollout_log_probs")
        with self.assertRaisesRegex(ValueError, "calculate_log_probs=true"):
            self.worker.train_batch(data)
        data = batch(samples)
        data["rollout_is_weights"] = torch.ones_like(data["advantages"])
        with self.assertRaisesRegex(ValueError, "corrects twice"):
            self.worker.train_batch(data)
        with self.assertRaisesRegex(ValueError, "distillation"):
            self.worker.train_batch(batch(samples, distillation_use_topk=True))
        detach(self.worker)
        for owner, name, value in (
            (self.worker.engine_config, "strategy", "veomni"),
            (self.worker.model_config, "use_fused_kernels", True),
            (self.worker.engine_config, "pad_to_length", True),
        ):
            with self.subTest(name), unittest.mock.patch.dict(owner.__dict__, {name: value}):
                with self.assertRaisesRegex(ValueError, name):
                    attach(self.worker, self.settings())

    def test_refuses_a_configuration_with_the_setting_to_change(self):
        import verl
        from hydra import compose, initialize_config_dir

        actor_rollout = "actor_rollout_ref"
        ours = f"+{actor_rollout}.rollout.custom.sis"
        recipe = [
            f"{ours}.address=localhost:1", f"{ours}.run=r", f"{ours}.damped_truncation=true",
            f"{actor_rollout}.rollout.name=vllm", f"{actor_rollout}.rollout.calculate_log_probs=true",
            "algorithm.rollout_correction.bypass_mode=true", f"{actor_rollout}.actor.strategy=fsdp2",
        ]  # fmt: skip
        with initialize_config_dir(str(pathlib.Path(verl.__file__).parent / "trainer/config"), version_base=None):
            check_training(compose("ppo_trainer", overrides=recipe))
            check_training(compose("ppo_megatron_trainer", overrides=recipe[:-1]))
            own = [f"{ours}.sets=trainer", *recipe[:-2], recipe[-1]]
            own[own.index(f"{actor_rollout}.rollout.name=vllm")] = f"{actor_rollout}.rollout.name=sglang"
            told = own.index(f"{actor_rollout}.rollout.calculate_log_probs=true")
            own[told] = "algorithm.rollout_correction.rollout_is=token"
            check_training(compose("ppo_trainer", overrides=[*own, f"{actor_rollout}.rollout.top_p=0.9"]))
            for config, override, message in (
                ("ppo_trainer", f"{actor_rollout}.rollout.name=sglang", "Set it to 'vllm'"),
                ("ppo_trainer", f"{actor_rollout}.model.use_fused_kernels=true", "use_fused_kernels.* Set it to False"),
                ("ppo_trainer", f"{actor_rollout}.actor.pad_to_length=true", "pad_to_length.* Set it to False"),
                ("ppo_trainer", "algorithm.rollout_correction.rollout_is=token", "rollout_is .* Set it to None"),
                ("ppo_trainer", f"{ours}.sets=trainer", "bypass_mode is True.*Set it to False"),
                ("ppo_trainer", f"{actor_rollout}.actor.fsdp_config.ulysses_sequence_parallel_size=2", "'trainer'.*Set it to 1"),
                ("ppo_trainer", "algorithm.rollout_correction.rollout_rs=token_k1", "rollout_rs .* Set it to None"),
                ("ppo_trainer", "algorithm.rollout_correction.rollout_rs=token_k1", "as a whole. Set it to None"),
                ("ppo_trainer", "distillation.distillation_loss.loss_mode=forward_kl_topk", "Set it to 'k3'"),
                ("ppo_trainer", f"{actor_rollout}.actor.policy_loss.loss_mode=geo_mean", "geo_mean': dam.*'vanilla'"),
                ("ppo_megatron_trainer", f"{actor_rollout}.rollout.top_p=0.9", "needs whole vocabularies"),
                ("ppo_megatron_trainer", f"{actor_rollout}.actor.megatron.use_remove_padding=false", "Set it to True"),
                (
                    "ppo_megatron_trainer", f"+{actor_rollout}.actor.megatron.override_transformer_config.fp8=e4m3",
                    "fp8 is 'e4m3'.* Set it to None",
                ),
            ):
                given = [*recipe, override, "distillation.enabled=true"]
                if "'trainer'" in message or "as a whole" in message:
                    given = [*own, override]
                if config != "ppo_trainer":
                    given.remove(recipe[-1])
                with self.subTest(override), self.assertRaisesRegex(ValueError, message):
                    check_training(compose(config, overrides=given))
