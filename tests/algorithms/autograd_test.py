"""The coefficient is what autograd says: objectives in torch float64, written without looking at
coefficients."""

import unittest

import numpy as np
import torch

from tests.algorithms import batches, kernel
from tests.reference import algorithms, numerics

# Threads that wait for each other take longer than these sums.
torch.set_num_threads(1)


def ratios(batch: algorithms.Batch, log_p: torch.Tensor) -> torch.Tensor:
    """The kernel's own ratio with the gradient of p(y) / constant: bounds are met exactly."""
    values = numerics.exp32(batch.log_ratios.astype(np.float32)).astype(np.float64)
    return torch.tensor(values) * torch.exp(log_p - log_p.detach())


def clipped(w, advantages, low, high):
    return torch.minimum(w * advantages, torch.clamp(w, 1 - low, 1 + high) * advantages)


def objectives(name: str, parameters, batch: algorithms.Batch, log_p: torch.Tensor) -> torch.Tensor:
    """[N]: the objective of every position. For gspo the trainer averages over the sequence."""
    a = torch.tensor(batch.advantages)
    w = ratios(batch, log_p)
    three = batch.log_corrections is not None
    correction = torch.ones_like(w)
    if three:
        correction = torch.tensor(numerics.exp32(batch.log_corrections.astype(np.float32)).astype(np.float64))
    constant = (correction if three else w).detach()
    ratio_clip = clipped(w, a, *parameters[-2:]) if three and len(parameters) > 1 else log_p * a
    away = ((a > 0) & (w > 1)) | ((a < 0) & (w < 1))
    if name == "importance_sampling":
        objective = w * a
    elif name == "no_correction":
        objective = log_p * a
    elif name in ("grpo", "dapo"):
        objective = clipped(w, a, parameters[0], parameters[-1])
    elif name == "cispo":
        objective = torch.clamp(w, max=1 + parameters[0]).detach() * log_p * a
    elif name == "dppo_top_k":
        far = torch.tensor(batch.total_variations) > parameters[0]
        objective = torch.where(far & away, w.detach(), w) * a
    elif name == "dppo_binary":
        q = torch.exp(torch.tensor(batch.reference_log_probs))
        far = (torch.exp(torch.tensor(batch.current_log_probs)) - q).abs() > parameters[0]
        objective = torch.where(far & away, w.detach(), w) * a
    elif name == "clip_cov":
        drop = torch.tensor(algorithms.dropped(batch, *parameters))
        objective = torch.where(drop, w.detach(), w) * a
    elif name == "soft_acceptance":
        total = torch.tensor(numerics.exp32(batch.log_importance_ratios.astype(np.float32)).astype(np.float64))
        outward = ((a > 0) & (total > 1)) | ((a < 0) & (total < 1))
        factor = torch.where(outward, torch.tensor(batch.acceptance_probabilities), 1.0)
        on_policy = torch.tensor(batch.accepted & (not three))
        return correction * factor * torch.where(on_policy, torch.exp(log_p - log_p.detach()), w) * a
    elif name == "damped_truncation":
        total = torch.tensor(numerics.exp32(batch.log_importance_ratios.astype(np.float32)).astype(np.float64))
        outward = ((a > 0) & (total > 1)) | ((a < 0) & (total < 1))
        return total.clamp(max=1) * torch.where(outward, torch.tensor(batch.acceptance_probabilities), 1.0) * log_p * a
    elif name == "tis":
        objective = torch.clamp(constant, max=parameters[0]) * ratio_clip
    elif name == "ice_pop":
        keep = (constant >= parameters[0]) & (constant <= parameters[1])
        objective = constant * keep * ratio_clip
    if three:
        return objective if name in ("tis", "ice_pop") else correction * objective
    # old_logp = where(accepted, logp.detach(), old_logp)
    on_policy = torch.exp(log_p - log_p.detach()) * a
    return torch.where(torch.tensor(batch.accepted), on_policy, objective)


class AutogradTest(unittest.TestCase):
    def check(self, name, parameters, batch):
        log_p = torch.tensor(np.maximum(batch.current_log_probs, -1e3), requires_grad=True)
        weights = torch.tensor(~batch.masked)
        (objectives(name, parameters, batch, log_p) * weights).sum().backward()
        _, coefficients = kernel.apply(name, parameters, batch)
        got = coefficients.astype(np.float64) * np.where(batch.masked, 0, batch.advantages)
        np.testing.assert_allclose(got, log_p.grad.numpy(), rtol=1e-6, atol=1e-35, err_msg=name)

    def test_random_batches(self):
        for name, defaults in algorithms.DEFAULTS.items():
            if name == "gspo":
                continue
            for parameters in {defaults, batches.EXACT.get(name, defaults)}:
                for three_policies in (False, True):
                    for seed in range(6):
                        self.check(name, parameters, batches.random_batch(seed, three_policies))

    def test_ratios_on_the_bounds(self):
        bounds = np.array([0.75, 1.0, 1.25, 1.5], np.float32)
        near = (np.log(bounds)[:, None].view(np.int32) + np.arange(-20, 21, dtype=np.int32)).view(np.float32)
        near = near[np.isfinite(near)].reshape(-1)
        ratio = numerics.exp32(near)
        for bound in bounds:
            self.assertIn(bound, ratio)
        count = 3 * len(near)
        zeros, never = np.zeros(count), np.zeros(count, bool)
        advantages = np.repeat([-1.5, 0.0, 0.75], len(near))
        batch = algorithms.Batch(
            [1], [0], [count], never, never, np.tile(near, 3).astype(np.float64), None, zeros - 1, zeros - 1,
            zeros + 0.25, np.tile(near, 3).astype(np.float64), zeros + 0.5, advantages, 0,
        )
        for name in ("grpo", "dapo", "cispo", "dppo_top_k", "tis", "ice_pop", "soft_acceptance", "damped_truncation"):
            self.check(name, batches.EXACT.get(name, ()), batch)

    def test_gspo_is_the_gradient_of_the_sequence_objective(self):
        low, high = batches.EXACT["gspo"]
        branches = set()
        for seed in range(24):
            batch = batches.random_batch(seed)
            # One advantage per sequence; log-ratios small enough for every branch.
            keys = batch.sequences()
            scale = 10.0 ** -(seed % 4)
            log_ratios = batches.single(np.clip(batch.log_ratios, -3, 3) * scale)
            sequence_advantages = {
                key: float(np.float32(np.sin(seed + i))) for i, key in enumerate(sorted(set(batch.keys)))
            }
            advantages = np.array([sequence_advantages[int(key)] for key in keys])
            batch = algorithms.Batch(**{**vars(batch), "log_ratios": log_ratios, "advantages": advantages})

            log_p = torch.zeros(len(keys), dtype=torch.float64, requires_grad=True)
            old = torch.where(torch.tensor(batch.accepted), log_p.detach(), -torch.tensor(log_ratios))
            objective = torch.zeros((), dtype=torch.float64)
            lengths = np.zeros(len(keys))
            for key, advantage in sequence_advantages.items():
                here = torch.tensor((keys == key) & ~batch.masked)
                lengths[keys == key] = here.sum()
                s = torch.exp((log_p - old)[here].mean())
                branches.add((advantage > 0, bool(s > 1 + high), bool(s < 1 - low)))
                objective = objective + clipped(s, torch.tensor(advantage), low, high)
            objective.backward()
            _, coefficients = kernel.apply("gspo", (low, high), batch)
            got = coefficients * advantages / lengths  # a mean over the sequence's tokens
            np.testing.assert_allclose(got, log_p.grad.numpy(), rtol=2e-6, atol=1e-12)
        self.assertEqual(len(branches), 6)


if __name__ == "__main__":
    unittest.main()
