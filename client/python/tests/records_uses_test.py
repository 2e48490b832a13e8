"""Uses of records other than SIS. Compares values with float64 over the whole vocabulary, and gradients
with autograd."""

import dataclasses
import importlib.util
import unittest

import numpy as np

import sis

if importlib.util.find_spec("torch"):
    import torch

    import sis.torch
    from sis._gathered import of_all_slots


def setUpModule():
    if not importlib.util.find_spec("torch"):
        raise unittest.SkipTest("PyTorch is not installed")
    torch.set_num_threads(1)


N, K, V = 9, 5, 12
# The last two positions have no record.
MISSING = 2


def records_of(log_q, sampled, top_k=K, missing=MISSING):
    """Returns the records of a rollout with log-probs [N, V], as the service returns them."""
    record = sis.canonical(np.broadcast_to(np.arange(log_q.shape[1]), log_q.shape), log_q, sampled,
                           np.take_along_axis(log_q, sampled[:, None], 1)[:, 0], top_k)  # fmt: skip
    ids, sampled_ids = record.top_k_ids.copy(), record.sampled_ids.copy()
    if missing:
        ids[-missing:], sampled_ids[-missing:] = -1, -1
    return sis.TopKRecords.of_rows([sis.Slice("s", length=len(log_q))], ids, sampled_ids, record.top_k_log_probs)


def log_softmax(logits):
    return (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)


def random(seed, top_p=None):
    """Log-probs of a rollout [N, V], its tokens [N], and logits of the current policy."""
    rng = np.random.default_rng(seed)
    log_q = log_softmax(rng.normal(size=(N, V)) * 2)
    if top_p:
        order = np.argsort(-log_q, axis=1)
        before = np.cumsum(np.exp(np.take_along_axis(log_q, order, 1)), axis=1) - np.exp(
            np.take_along_axis(log_q, order, 1)
        )
        cut = np.zeros(log_q.shape, bool)
        np.put_along_axis(cut, order, before > top_p, axis=1)
        log_q = np.where(cut, -np.inf, log_q)
        log_q = (log_q - np.log(np.exp(log_q).sum(1, keepdims=True))).astype(np.float32)
    sampled = np.array([rng.choice(V, p=np.exp(row.astype(float)) / np.exp(row.astype(float)).sum()) for row in log_q])
    logits = torch.tensor(rng.normal(size=(N, V)) * 2, requires_grad=True)
    return log_q, sampled.astype(np.int32), logits


class UsedSlotsTest(unittest.TestCase):
    def test_used_slots_give_the_results_of_all_slots(self):
        """Values and gradients, of a run whose sets differ in length, with positions that are missing."""
        log_q, sampled, logits = random(3, top_p=0.9)
        kept = records_of(log_q, sampled)
        used = kept.ids >= 0
        self.assertLess(used.sum(), used.size)
        padded = sis.torch.log_probs_at(kept, logits)
        narrow = padded._replace(log_probs=padded.log_probs[torch.from_numpy(used)])
        expected, got = (
            sis.torch.replayed(kept, current).current.sampled_log_probs for current in (padded, narrow)
        )
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        gradients = [
            torch.autograd.grad(values.nan_to_num().sum(), logits, retain_graph=True)[0] for values in (expected, got)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
        self.assertGreater(gradients[0].abs().max(), 0)
        for current in (narrow.log_probs.detach(), narrow.log_probs.detach().float().numpy()):
            wide = padded.log_probs.detach()
            wide = wide if torch.is_tensor(current) else wide.float().numpy()
            for got, expected in zip(sis.reduce(kept, current), sis.reduce(kept, wide)):
                np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))
        with self.assertRaisesRegex(ValueError, "used slots"):
            sis.torch.replayed(kept, narrow._replace(log_probs=narrow.log_probs[1:]))


class LogProbsTest(unittest.TestCase):
    def test_are_those_of_gather_with_gradients(self):
        log_q, sampled, logits = random(1)
        kept = records_of(log_q, sampled)
        own = torch.from_numpy(sampled).long()
        current = sis.torch.log_probs_at(kept, logits.float(), own, temperature=0.7)
        gathered = of_all_slots(kept, sis.torch.gather(kept, logits.detach().float(), own, temperature=0.7))
        used = torch.from_numpy(kept.ids) >= 0
        torch.testing.assert_close(current.log_probs[used], gathered.log_probs[used])
        torch.testing.assert_close(current.sampled_log_probs, gathered.sampled_log_probs)
        self.assertTrue(torch.isneginf(current.log_probs[~used]).all())
        self.assertTrue(torch.isneginf(sis.torch.log_probs_at(kept, logits).sampled_log_probs[-MISSING:]).all())


class SamplingReplayTest(unittest.TestCase):
    def test_of_equal_policies_ratios_are_1_and_without_it_they_are_the_kept_mass(self):
        log_q, sampled, _ = random(2, top_p=0.6)
        # The policy before it was truncated: the same among what was kept.
        rng = np.random.default_rng(2)
        whole = torch.tensor(log_softmax(rng.normal(size=(N, V)) * 2).astype(float))
        kept = records_of(log_q, sampled)
        current = sis.torch.log_probs_at(kept, whole, torch.from_numpy(sampled).long())
        replay = sis.torch.replayed(kept, current)
        self.assertEqual(replay.complete.tolist(), [True] * (N - MISSING) + [False] * MISSING)
        own = np.take_along_axis(log_q, sampled[:, None].astype(int), 1)[:, 0]
        ratios = (replay.current.sampled_log_probs.numpy() - own)[:-MISSING]
        np.testing.assert_allclose(ratios, 0, atol=1e-6)
        plain = np.exp(current.sampled_log_probs.numpy() - own)[:-MISSING]
        np.testing.assert_allclose(plain, replay.kept_mass.numpy()[:-MISSING], rtol=1e-6)
        self.assertLess(plain.min(), 0.9)
        # Gathered another way, without values for unused slots.
        gathered = sis.torch.gather(kept, whole, torch.from_numpy(sampled).long())
        of_gathered = sis.torch.replayed(kept, gathered).current.sampled_log_probs.numpy()[:-MISSING]
        np.testing.assert_allclose(of_gathered, own[:-MISSING], atol=1e-6)
        # Missing positions are as they were.
        self.assertEqual(
            replay.current.sampled_log_probs[-MISSING:].tolist(), current.sampled_log_probs[-MISSING:].tolist()
        )

    def test_a_set_that_is_cut_off_is_not_complete(self):
        log_q, sampled, logits = random(3)
        kept = records_of(log_q, sampled)
        self.assertFalse(sis.torch.is_complete(kept).any())
        current = sis.torch.log_probs_at(kept, logits, torch.from_numpy(sampled).long())
        replay = sis.torch.replayed(kept, current)
        self.assertTrue(torch.equal(replay.current.sampled_log_probs, current.sampled_log_probs))

    def test_a_set_that_a_mass_target_may_have_cut_is_complete_only_by_its_sum(self):
        target = 0.993
        log_q, sampled, logits = random(5, top_p=0.99)
        whole = records_of(log_q, sampled, top_k=V)
        probabilities = np.exp(whole.log_probs.astype(float))
        # The shortest prefix that reaches it.
        beyond = np.cumsum(probabilities, axis=1) - probabilities >= target
        ids = np.where(beyond, -1, whole.ids)
        was_cut = (beyond & (whole.ids >= 0)).any(axis=1)
        self.assertTrue(was_cut.any() and not was_cut[:-MISSING].all())
        cut_records = sis.TopKRecords.of_rows(whole.slices, ids, whole.sampled_ids, whole.log_probs)
        records = dataclasses.replace(cut_records, mass=target)
        there = torch.arange(N) < N - MISSING
        self.assertTrue(torch.equal(sis.torch.is_complete(records), there & ~torch.from_numpy(was_cut)))
        self.assertTrue(torch.equal(sis.torch.is_complete(records.select([0])), sis.torch.is_complete(records)))
        # Without the target they would be taken for complete, and renormalised over too little.
        self.assertTrue(torch.equal(sis.torch.is_complete(dataclasses.replace(records, mass=0.0)), there))
        current = sis.torch.log_probs_at(records, logits, torch.from_numpy(sampled).long())
        replay = sis.torch.replayed(records, current)
        cut = torch.from_numpy(was_cut)
        self.assertTrue(torch.equal(replay.current.sampled_log_probs[cut], current.sampled_log_probs[cut]))

    def test_gradients(self):
        # Some complete, some not.
        log_q, sampled, logits = random(4, top_p=0.85)
        kept = records_of(log_q, sampled, top_k=3)
        own = torch.from_numpy(sampled).long()
        complete = sis.torch.is_complete(kept)
        self.assertTrue(complete.any() and not complete[:-MISSING].all())

        def of(values):
            return sis.torch.replayed(kept, sis.torch.log_probs_at(kept, values, own)).current.sampled_log_probs

        self.assertTrue(torch.autograd.gradcheck(of, logits))
        # A policy that excludes all kept tokens has nothing to renormalise.
        one = np.flatnonzero(complete)[0]
        barred = torch.zeros_like(logits, dtype=torch.bool)
        barred[one, torch.from_numpy(kept.ids[one]).clamp(min=0).long()] = True
        replay = sis.torch.replayed(kept, sis.torch.log_probs_at(kept, logits.masked_fill(barred, -torch.inf), own))
        self.assertTrue(torch.isneginf(replay.current.sampled_log_probs[one]))
        rest = replay.current.sampled_log_probs[torch.arange(N) != one]
        (gradient,) = torch.autograd.grad(rest.sum(), logits)
        self.assertTrue(torch.isfinite(gradient).all())
        # Softmax over the kept tokens alone.
        keep = torch.from_numpy(np.isfinite(log_q))
        want = torch.log_softmax(logits.masked_fill(~keep, -torch.inf), 1).gather(1, own[:, None])[:, 0]
        (wanted,) = torch.autograd.grad(want[complete].sum(), logits)
        (got,) = torch.autograd.grad(of(logits)[complete].sum(), logits)
        torch.testing.assert_close(got, wanted)


if __name__ == "__main__":
    unittest.main(verbosity=2)
