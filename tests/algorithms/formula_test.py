"""Surrogates and coefficients against their formulas in float64."""

import ctypes
import dataclasses
import unittest

import numpy as np

from tests.algorithms import batches, kernel
from tests.reference import algorithms, numerics


def every_case():
    for name, rule in algorithms.RULES.items():
        for parameters in {rule.defaults, rule.others}:
            for three_policies in (False, True):
                for seed in range(20):
                    yield name, parameters, batches.random_batch(seed, three_policies)


class FormulaTest(unittest.TestCase):
    def test_every_algorithm(self):
        for name, parameters, batch in every_case():
            with self.subTest(name=name, parameters=parameters, draw=batch.draw):
                for got, want in zip(kernel.apply(name, parameters, batch), algorithms.apply(name, parameters, batch)):
                    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-37)

    def test_ratios_on_the_bounds(self):
        bounds = np.array([0.75, 1.0, 1.25, 1.5], np.float32)
        near = (np.log(bounds)[:, None].view(np.int32) + np.arange(-20, 21, dtype=np.int32)).view(np.float32)
        near = near[np.isfinite(near)].reshape(-1)
        for bound in bounds:
            self.assertIn(bound, numerics.exp32(near))
        count = 3 * len(near)
        log_ratios, zeros, never = np.tile(near, 3).astype(np.float64), np.zeros(count), np.zeros(count, bool)
        advantages = np.repeat([-1.5, 0.0, 0.75], len(near))
        batch = algorithms.Batch(
            [1], [0], [count], never, never, log_ratios, None, zeros - 1, zeros - 1, zeros + 0.25, log_ratios,
            zeros + 0.5, advantages, 0, exp=lambda x: numerics.exp32(x.astype(np.float32)).astype(np.float64),
        )
        for name, rule in algorithms.RULES.items():
            for got, want in zip(kernel.apply(name, rule.others, batch), algorithms.apply(name, rule.others, batch)):
                np.testing.assert_allclose(got, want, rtol=2e-6, err_msg=name)

    def test_what_the_batches_must_cover_is_there(self):
        changed = {name: 0 for name in algorithms.RULES}
        for name, parameters, batch in every_case():
            surrogate, coefficient = kernel.apply(name, parameters, batch)
            plain, _ = kernel.apply("importance_sampling", (), batch)
            changed[name] += int(((surrogate != plain) | (coefficient != plain)).sum())
        self.assertEqual(changed.pop("importance_sampling"), 0)
        self.assertGreater(min(changed.values()), 30, changed)

    def test_accepted_tokens_count_as_on_policy(self):
        for name, parameters, batch in every_case():
            if not algorithms.RULES[name].exempts or batch.log_corrections is not None:
                continue
            for output in kernel.apply(name, parameters, batch):
                self.assertTrue((output[batch.accepted] == 1).all(), name)

    def test_masked_tokens_count_nothing_and_change_nothing(self):
        for name, parameters, batch in every_case():
            before = kernel.apply(name, parameters, batch)
            noise = {
                field: np.where(batch.masked, 7.0, getattr(batch, field))
                for field in (
                    "log_ratios",
                    "current_log_probs",
                    "reference_log_probs",
                    "log_importance_ratios",
                    "acceptance_probabilities",
                    "advantages",
                )
            }
            after = kernel.apply(name, parameters, dataclasses.replace(batch, **noise))
            for one, other in zip(before, after):
                self.assertTrue((one[batch.masked] == 0).all(), name)
                self.assertEqual(one.tobytes(), other.tobytes(), name)

    def test_the_order_of_the_parts_does_not_matter(self):
        for name, parameters, batch in every_case():
            order = np.roll(np.arange(len(batch.counts)), 2)
            starts = np.concatenate([[0], np.cumsum(batch.counts)])
            index = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in order])
            moved = {
                field.name: value[index] if isinstance(value, np.ndarray) else value
                for field in dataclasses.fields(batch)
                for value in [getattr(batch, field.name)]
            }
            for field in ("keys", "first_positions", "counts"):
                moved[field] = [getattr(batch, field)[i] for i in order]
            for one, other in zip(kernel.apply(name, parameters, batch),
                                  kernel.apply(name, parameters, algorithms.Batch(**moved))):
                self.assertEqual(one[index].tobytes(), other.tobytes(), name)

    def test_another_draw_drops_other_tokens(self):
        batch = batches.random_batch(3)
        drops = {
            (kernel.apply("clip_cov", (0.0, 1e38, 0.02), dataclasses.replace(batch, draw=draw))[0] == 0).tobytes()
            for draw in range(8)
        }
        self.assertEqual(len(drops), 8)

    def test_soft_acceptance_changes_only_tokens_that_lead_away(self):
        outward_accepted = 0
        for seed in range(20):
            for three_policies in (False, True):
                batch = batches.random_batch(seed, three_policies)
                surrogates, coefficients = kernel.apply("soft_acceptance", (), batch)
                plain, _ = kernel.apply("importance_sampling", (), batch)
                moved = np.sign(numerics.exp32(batch.log_importance_ratios.astype(np.float32)) - 1)
                outward = moved * batch.advantages > 0
                self.assertEqual(surrogates.tobytes(), coefficients.tobytes())
                self.assertEqual(coefficients[~outward].tobytes(), plain[~outward].tobytes())
                self.assertTrue((coefficients <= plain).all())
                outward_accepted += (outward & batch.accepted & (coefficients < 1)).sum()
        self.assertGreater(outward_accepted, 100)

    def test_soft_acceptance_with_a_proximal_policy_that_is_the_current_one(self):
        # All of the ratio is then in the correction: the same as with two policies.
        for seed in range(20):
            two = batches.random_batch(seed)
            three = dataclasses.replace(two, log_ratios=0 * two.advantages, log_corrections=two.log_ratios)
            for one, other in zip(
                kernel.apply("soft_acceptance", (), two), kernel.apply("soft_acceptance", (), three)
            ):
                self.assertEqual(one.tobytes(), other.tobytes())

    def test_top_k_total_variation(self):
        rng = np.random.default_rng(5)
        logits = rng.normal(0, 2, size=(500, 40))
        behaviour = batches.single(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
        logits += rng.normal(0, 1, size=logits.shape)
        current = batches.single(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
        for slots in (0, 1, 10, 39):
            outside = rng.random(500) < 0.5
            outside_behaviour = np.where(outside, behaviour[:, 39], -np.inf)
            arrays = [behaviour[:, :slots], current[:, :slots], outside_behaviour, current[:, 39]]
            single = [np.ascontiguousarray(a, np.float32) for a in arrays]
            got = np.full(500, np.nan, np.float32)
            kernel.LIBRARY.sis_top_k_total_variation(
                ctypes.c_uint64(500), ctypes.c_uint64(slots), *(kernel.pointer(a) for a in (*single, got))
            )
            want = algorithms.top_k_total_variation(*arrays)
            np.testing.assert_allclose(got, want, atol=1e-6)
            whole = np.abs(np.exp(behaviour) - np.exp(current)).sum(axis=1) / 2
            self.assertTrue((got <= whole + 1e-6).all())
            if slots == 39:
                np.testing.assert_allclose(got, whole, atol=1e-6)


if __name__ == "__main__":
    unittest.main()
