"""Weights of tokens in TRL's loss: settings of weights, and rules that replace the clip."""

import collections

import torch
from in_float64 import of_rule
from trainer_case import InFloat64, OfAnotherEngine, TrainerCase, Watched, settings

from sis.integrations.trl import SisConfig, _refusals


class TrlWeightTest(TrainerCase):
    def test_weights_and_rules_in_the_place_of_the_clip(self):
        """Losses and gradients beside float64, at the second of a generation's two updates: at the first, of equal
        policies, rounding alone tells which token is outward."""

        class Ruled(InFloat64):
            lost = (3,)

            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.seen, servers = collections.Counter(), self.sis_client._servers
                append = servers.append

                def lossy(source):
                    stream = append(source)
                    put = stream._put_checked
                    stream._put_checked = lambda recorded, at_once: put(
                        [one for one in recorded if not one.sequence.id.endswith("/3")], at_once
                    )
                    return stream

                servers.append = lossy

            def _compute_loss(self, model, inputs):
                if self.state.global_step % 2:
                    return super()._compute_loss(model, inputs)
                advantages = torch.linspace(-1.0, 1.0, len(inputs["advantages"]))
                return Watched._compute_loss(self, model, {**inputs, "advantages": advantages})

            def weights(self, ratio, a, advantages):
                if self._sis_config.rule is None:
                    return a + (1 - a) * ratio
                outward = (ratio - 1) * advantages > 0
                clipped = outward & ((ratio > 1.2) | (ratio < 0.8))
                self.seen.update(kept=int((~outward).sum()), damped=int((outward & (a > 0)).sum()))
                self.seen.update(none=int((outward & (a == 0)).sum()), clip=int(clipped.sum()))
                return of_rule(self._sis_config.rule, ratio, a, advantages)

        class OnOwnSets(Ruled, OfAnotherEngine):
            pass

        for loss_type, epsilon_high, rule in (
            ("cispo", 1e4, {"weight": "expected"}),
            ("cispo", 1.0, {"damped_truncation": True}),
            ("dapo", 0.2, {"damped_truncation": True}),
            ("dapo", 0.2, {"soft_acceptance": True, "weight": "expected"}),
            ("dapo", 0.2, {"soft_acceptance": True, "weight": "expected", "sets": "trainer"}),
        ):
            with self.subTest(loss_type, **rule):
                config, kind = SisConfig(self.server.address, **rule), OnOwnSets if "sets" in rule else Ruled
                trainer = self.of_a_hundred_words(kind, config, loss_type=loss_type, epsilon_high=epsilon_high)
                rows = self.train(trainer)
                self.assertGreater(rows[1]["sis/missing_never_arrived"], 0)
                self.assertLess(trainer.most_acceptance, 1e-3)
                self.assertLess(trainer.most_loss, 1e-5)
                self.assertLess(trainer.most, 1e-4)
                for name in ("kept", "damped", "none", "clip") if config.rule else ():
                    self.assertGreater(trainer.seen[name], 5, name)

    def test_weights_that_cispo_would_limit(self):
        """An accepted token weighs 1: a limit below that changes the weights, whichever setting made it."""
        soft, hard = SisConfig(soft_acceptance=True), SisConfig()

        def cispo(**changed):
            return settings(self.folder / "out", loss_type="cispo", **changed)

        for config in (soft, hard, SisConfig(weight="expected")):
            for changed in (
                {}, {"epsilon": 0.999}, {"epsilon_high": 0.999},
                {"epsilon": 5.0, "epsilon_high": 0.28},
            ):  # fmt: skip
                message = "epsilon_high is 0.*[Ss]et epsilon_high"
                with self.subTest(changed), self.assertRaisesRegex(ValueError, message):
                    _refusals.check_arguments(cispo(**changed), config)
            for changed in ({"epsilon": 1.0}, {"epsilon_high": 1.0}, {"epsilon_high": 1e4}):
                _refusals.check_arguments(cispo(**changed), config)
        _refusals.check_arguments(settings(self.folder / "out", epsilon_high=0.28), hard)
