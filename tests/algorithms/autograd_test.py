"""The coefficient is what autograd says: objectives in torch float64, written without looking at
coefficients."""

import unittest

import numpy as np
import torch

from tests.algorithms import batches, kernel
from tests.reference import algorithms

# Threads that wait for each other take longer than these sums.
torch.set_num_threads(1)


def clipped(w, advantages, low, high):
    return torch.minimum(w * advantages, torch.clamp(w, 1 - low, 1 + high) * advantages)


class AutogradTest(unittest.TestCase):
    def check(self, name, parameters, batch):
        rule, three_policies = algorithms.RULES[name], batch.log_corrections is not None
        low, high = (2 * parameters)[-2:]  # grpo has one bound
        log_p = torch.zeros(len(batch.masked), dtype=torch.float64, requires_grad=True)
        advantages = torch.tensor(batch.advantages)
        objective = clipped(torch.tensor(batch.ratios()) * torch.exp(log_p), advantages, low, high)
        if three_policies:
            correction = batch.corrections()
            objective = objective * torch.tensor(rule.correct(correction, *parameters) if rule.correct else correction)
        else:
            # old_logp = where(accepted, logp.detach(), old_logp)
            objective = torch.where(torch.tensor(batch.accepted), torch.exp(log_p) * advantages, objective)
        (objective * torch.tensor(~batch.masked)).sum().backward()
        _, coefficients = kernel.apply(name, parameters, batch)
        got = coefficients.astype(np.float64) * np.where(batch.masked, 0, batch.advantages)
        np.testing.assert_allclose(got, log_p.grad.numpy(), rtol=2e-6, atol=1e-35, err_msg=name)

    def test_clipped_objectives(self):
        for name in ("grpo", "dapo", "tis", "ice_pop"):
            rule = algorithms.RULES[name]
            for parameters in (rule.defaults, rule.others):
                for three_policies in (True,) if rule.correct else (False, True):
                    for seed in range(6):
                        self.check(name, parameters, batches.random_batch(seed, three_policies))

    def test_gspo_is_the_gradient_of_the_sequence_objective(self):
        low, high = algorithms.RULES["gspo"].others
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
