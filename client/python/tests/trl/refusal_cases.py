"""TRL's settings that are wrong with SIS, and refused."""

import types
import warnings

from trainer_case import TrainerCase, settings

from sis.integrations.trl import SisConfig, SisGRPOTrainer, _capture, _refusals


class TrlRefusalTest(TrainerCase):
    def test_trls_own_correction_is_switched_off(self):
        """With TRL's defaults, before TRL reads them, and one warning says so. It stays on beside the trainer's sets,
        and where TRL leaves it out."""
        for use_vllm, sets, on in ((True, "engine", False), (True, "trainer", True), (False, "engine", True)):
            arguments = settings(self.folder / "out")
            self.assertTrue(arguments.vllm_importance_sampling_correction)
            # Not in the constructor, which asks for vLLM's server.
            arguments.use_vllm = use_vllm
            # GRPOTrainer itself is not made: no engine is started.
            trainer = SisGRPOTrainer.__new__(SisGRPOTrainer)
            trainer._sis_config = SisConfig(sets=sets)
            with self.subTest(use_vllm=use_vllm, sets=sets), warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                for _ in range(2):
                    trainer._sis_check_arguments(arguments)
                self.assertEqual(arguments.vllm_importance_sampling_correction, on)
                told = [str(warning.message) for warning in seen]
                self.assertEqual(sum("correction, is switched off" in text for text in told), not on, told)

    def test_refused(self):
        wrong = {
            "generate_batch": {"use_transformers_continuous_batching": True},
            "n is 2": {"generation_kwargs": {"n": 2}},
            "prompt_lookup_num_tokens": {"generation_kwargs": {"prompt_lookup_num_tokens": 3}},
            "loss_type is 'vespo'.* soft_acceptance gives each token.*Set it to 'dapo'": {
                "config": SisConfig(soft_acceptance=True), "loss_type": "vespo",
            },
            "importance_sampling_level is 'sequence': damped_truncation .*Set it to 'token'": {
                "config": SisConfig(damped_truncation=True), "importance_sampling_level": "sequence",
            },
            "gradient_accumulation_steps is 2, so a rollout .* by one update.*Set num_iterations": {
                "config": SisConfig(sets="trainer"), "num_iterations": 1,
            },
            "use_bias_correction_kl is True.*by damped_truncation that is 1. Set it to False": {
                "config": SisConfig(damped_truncation=True), "beta": 0.1,
            },
        }  # fmt: skip
        for message, changed in wrong.items():
            config = changed.pop("config", None)
            arguments = settings(self.folder / "out")
            for name, value in changed.items():
                # Not in the constructor, which asks for Liger, and for vLLM's server.
                setattr(arguments, name, value)
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                SisGRPOTrainer(args=arguments, sis_config=config)
        # Arguments of transformers 4, without fsdp_plugin_args.
        _refusals.check_sharding(types.SimpleNamespace(deepspeed_plugin=None))
        config = types.SimpleNamespace(
            model_config=types.SimpleNamespace(logprobs_mode="processed_logprobs"),
            speculative_config=types.SimpleNamespace(method="ngram"),
        )
        llm = types.SimpleNamespace(llm_engine=types.SimpleNamespace(vllm_config=config, **vars(config)))
        with self.assertRaisesRegex(ValueError, "speculative_config is set"):
            _capture.vllm(types.SimpleNamespace(llm=llm), top_k=20, process_index=0)
        for given, message in (
            ({"beta": 0.1, "top_p": 0.9}, "beta is 0.1.*top_p"),
            ({"beta": 0.1, "generation_kwargs": {"min_p": 0.1}}, "beta is 0.1.*min_p"),
        ):
            with self.subTest(given), self.assertRaisesRegex(ValueError, message):
                SisGRPOTrainer(args=settings(self.folder / "out", **given))
