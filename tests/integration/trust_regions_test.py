"""Trust regions of whole sequences over gRPC, against their formulas in float64."""

import unittest

import numpy as np

import sis
from server.testing.live_server import LiveServer
from tests.integration.evaluated_batch import LENGTHS, TOP_K, EvaluatedBatchTest, Values
from tests.reference import algorithms, numerics

REGIONS = [
    (kind, aggregate)
    for kind in ("k1", "k2", "k3", "total_variation", "kl")
    for aggregate in algorithms.AGGREGATES
]
SLICES = np.repeat(np.arange(len(LENGTHS)), list(LENGTHS.values()))


class TrustRegionsTest(EvaluatedBatchTest):
    def evaluate(self, run, records, form="gathered", regions=(), outputs=("surrogates", "coefficients"), **options):
        values = Values(records, self.logits, form, self.tokens)
        given = {
            "mask": self.mask,
            "own_log_probs": self.own,
            "algorithm": sis.Grpo(),
            "advantages": self.advantages,
            "trust_regions": regions,
            **options,
        }
        options = sis.EvaluateOptions(**given)
        return values, values.evaluate(self.client, run, records, draw=4, outputs=outputs, options=options)

    def wanted(self, records, values, kind, own=True):
        """[N], NaN where nothing counts."""
        scored = self.mask & ~self.lost
        reference = np.where(scored, records.sampled_log_probs, self.own).astype(np.float64)
        current = values.sampled.astype(np.float64)
        if kind in ("total_variation", "kl"):
            inside = numerics.rank(records.sampled_ids, records.ids, records.log_probs) < TOP_K
            distance = {
                "total_variation": algorithms.top_k_total_variation,
                "kl": algorithms.top_k_kl_divergence,
            }[kind]
            # Where there is no record, the sampled token is all that is known.
            slots = np.where(self.lost[:, None], -np.inf, records.log_probs.astype(np.float64))
            outside = np.where(inside & ~self.lost, -np.inf, reference)
            divergence = distance(slots, values.log_probs.astype(np.float64), outside, current)
        else:
            log_ratios = np.where(self.mask, values.sampled - reference.astype(np.float32), 0)
            divergence = algorithms.divergences(kind, log_ratios.astype(np.float64))
        return np.where(self.mask & (own | ~self.lost), divergence, np.nan)

    def test_divergences_are_those_of_their_formulas(self):
        for encoding in ("float32", "float16"):
            run, records = self.recorded(f"formulas-{encoding}", encoding)
            for form in ("gathered", "reduced"):
                regions = [
                    (kind, aggregate)
                    for kind, aggregate in REGIONS
                    if form != "reduced" or kind[0] == "k" and kind != "kl"
                ]
                for begin in range(0, len(regions), 8):
                    part = regions[begin : begin + 8]
                    asked = [sis.SequenceTrustRegion(*region, upper=1e9) for region in part]
                    values, evaluation = self.evaluate(run, records, form, asked)
                    self.assertFalse(evaluation.outside_trust_regions.any())
                    for column, (kind, aggregate) in enumerate(part):
                        tokens = self.wanted(records, values, kind)
                        for row in range(len(LENGTHS)):
                            here = tokens[(SLICES == row) & ~np.isnan(tokens)]
                            want = algorithms.AGGREGATES[aggregate](here)
                            got = evaluation.divergences[row, column]
                            self.assertGreater(abs(want), 1e-3)
                            message = f"{form} {kind} {aggregate}"
                            self.assertAlmostEqual(got, want, delta=1e-5 + 2e-6 * len(here), msg=message)

    def test_what_lies_outside_is_left_out_as_if_masked(self):
        run, records = self.recorded("outside")
        _, plain = self.evaluate(run, records, regions=[sis.SequenceTrustRegion("k3", "mean", upper=1e9)])
        middle = sorted(plain.divergences[:, 0])[1]
        regions = [
            sis.SequenceTrustRegion("k2", "sum", upper=1e9),
            sis.SequenceTrustRegion("k3", "mean", upper=middle),  # what is on a bound is within
        ]
        outside = plain.divergences[:, 0] > middle
        self.assertEqual(outside.sum(), 1)
        kept = self.mask & ~outside[SLICES]
        outputs = ("decisions", "ratios", "surrogates", "coefficients")
        # Those that look at more than one token have to leave a sequence out of their means, too.
        for algorithm in (sis.Grpo(), sis.Gspo(0.05, 0.1), sis.ClipCov(0.1, 5.0, 0.1), sis.SoftAcceptance(),
                          sis.DampedTruncation(), sis.DppoTopK()):
            with self.subTest(algorithm):
                _, got = self.evaluate(run, records, regions=regions, outputs=outputs, algorithm=algorithm)
                _, masked = self.evaluate(run, records, outputs=outputs, algorithm=algorithm, mask=kept)
                _, whole = self.evaluate(run, records, outputs=outputs, algorithm=algorithm)
                np.testing.assert_array_equal(got.outside_trust_regions, outside)
                np.testing.assert_array_equal(got.surrogates, masked.surrogates)
                np.testing.assert_array_equal(got.coefficients, masked.coefficients)
                self.assertTrue((got.coefficients[~kept] == 0).all())
                self.assertTrue((whole.coefficients[~kept & self.mask] != 0).any())
                # What was decided is told of all.
                np.testing.assert_array_equal(got.decisions, whole.decisions)
                np.testing.assert_array_equal(got.ratios, whole.ratios)
                self.assertEqual(got.totals, whole.totals)

    def test_of_negative_advantages_only_those_are_left_out(self):
        run, records = self.recorded("negative")
        _, plain = self.evaluate(run, records, regions=[sis.SequenceTrustRegion("k1", "mean", upper=1e9)])
        delta = plain.divergences[:, 0].min() - 1e-3
        region = sis.SequenceTrustRegion("k1", "mean", upper=delta, negative_advantages_only=True)
        # All three lie outside; the last has nothing to leave out.
        advantages = np.where(SLICES == 2, np.abs(self.advantages), self.advantages)
        kept = self.mask & ~(advantages < 0)
        for row in (0, 1):
            here = self.mask & (SLICES == row)
            self.assertTrue((advantages[here] < 0).any() and (advantages[here] > 0).any())
        outputs = ("decisions", "ratios", "surrogates", "coefficients")
        for algorithm in (sis.Grpo(), sis.Gspo(0.05, 0.1), sis.SoftAcceptance()):
            with self.subTest(algorithm):
                given = {"outputs": outputs, "algorithm": algorithm, "advantages": advantages}
                _, got = self.evaluate(run, records, regions=[region], **given)
                _, masked = self.evaluate(run, records, mask=kept, **given)
                np.testing.assert_array_equal(got.outside_trust_regions, [True, True, False])
                np.testing.assert_array_equal(got.coefficients, masked.coefficients)
                np.testing.assert_array_equal(got.surrogates, masked.surrogates)
                # Beside a region that leaves out all of a slice, it adds nothing there.
                everything = sis.SequenceTrustRegion("k1", "mean", upper=delta)
                _, got = self.evaluate(run, records, regions=[region, everything, region], **given)
                self.assertTrue((got.coefficients == 0).all() and got.outside_trust_regions.all())
        # DeepSeek-V3.2, eq. (9): M = 0 where A < 0 and the mean of log(old / current) is above delta.
        middle = float(np.median(plain.divergences[:, 0]))
        region = sis.SequenceTrustRegion("k1", "mean", upper=middle, negative_advantages_only=True)
        _, got = self.evaluate(run, records, regions=[region])
        _, whole = self.evaluate(run, records)
        mask = ~((plain.divergences[:, 0] > middle)[SLICES] & (self.advantages < 0))
        self.assertTrue(0 < (mask[self.mask]).sum() < self.mask.sum())
        np.testing.assert_array_equal(got.coefficients, np.where(mask, whole.coefficients, 0))

    def test_three_policies_are_looked_at_where_the_proximal_one_left_the_behaviour(self):
        run, records = self.recorded("three")
        regions = [sis.SequenceTrustRegion("k1", "mean", upper=1e9)]
        _, two = self.evaluate(run, records, regions=regions)
        _, three = self.evaluate(run, records, regions=regions, decoupled_log_probs=self.current_of_three)
        np.testing.assert_array_equal(three.divergences, two.divergences)

    def test_without_own_log_probs_what_is_missing_counts_nothing(self):
        run, records = self.recorded("missing")
        regions = [sis.SequenceTrustRegion("k2", "sum", upper=0.5)]
        values, got = self.evaluate(
            run, records, regions=regions, outputs=(), algorithm=None, own_log_probs=None
        )
        tokens = self.wanted(records, values, "k2", own=False)
        sums = [np.nansum(tokens[SLICES == row]) for row in range(len(LENGTHS))]
        np.testing.assert_allclose(got.divergences[:, 0], sums, rtol=1e-5)
        np.testing.assert_array_equal(got.outside_trust_regions, np.array(sums) > 0.5)
        nothing = np.where(SLICES == 1, False, self.mask)
        _, got = self.evaluate(
            run, records, regions=[sis.SequenceTrustRegion("k2", "sum", lower=1e9)], outputs=(), algorithm=None,
            mask=nothing,
        )
        np.testing.assert_array_equal(got.outside_trust_regions, [True, False, True])
        self.assertEqual(got.divergences[1, 0], 0)

    def test_micro_batches_and_replicas_tell_the_same(self):
        regions = [
            sis.SequenceTrustRegion("k3", "max", upper=0.2),
            sis.SequenceTrustRegion("total_variation", "mean", lower=0.1, upper=0.3),
        ]
        _, whole = self.evaluate(*self.recorded("whole"), regions=regions)
        servers = [LiveServer(), LiveServer()]
        for server in servers:
            self.addCleanup(server.close)
        for name, addresses in (("small", self.server.address), ("replicas", [s.address for s in servers])):
            self.client = sis.Client(addresses)
            self.addCleanup(self.client.close)
            self.client._service.micro_batch_bytes = 64
            _, parts = self.evaluate(*self.recorded(name), regions=regions)
            np.testing.assert_array_equal(parts.divergences, whole.divergences, name)
            np.testing.assert_array_equal(parts.outside_trust_regions, whole.outside_trust_regions, name)
            np.testing.assert_array_equal(parts.coefficients, whole.coefficients, name)

    def test_metrics_count_a_slice_once_per_draw(self):
        run, records = self.recorded("counted")
        regions = [sis.SequenceTrustRegion("k2", "sum", upper=0.0)]
        for _ in range(3):
            self.evaluate(run, records, regions=regions)
        for result, count in (("outside", 3), ("within", 0)):
            series = f'sis_trust_region_sequences_total{{result="{result}",run="counted"}}'
            self.assertEqual(self.server.metrics()[series], count)

    def test_what_is_no_region_is_refused_by_name(self):
        run, records = self.recorded("refused")
        for form, region, words in (
            ("gathered", sis.SequenceTrustRegion("k1", "sum"), r"trust_regions\[0\].lower, upper: neither"),
            ("gathered", sis.SequenceTrustRegion("k1", "sum", 1.0, 0.5), "is no interval"),
            ("gathered", sis.SequenceTrustRegion("k1", "sum", float("nan"), 0.5), "is no interval"),
            ("reduced", sis.SequenceTrustRegion("kl", "sum", upper=0.5), "KL needs log-probs at every slot"),
        ):
            with self.assertRaisesRegex(sis.InvalidArgument, words):
                self.evaluate(run, records, form, [region])
        region = sis.SequenceTrustRegion("k1", "sum", upper=1.0, negative_advantages_only=True)
        with self.assertRaisesRegex(sis.InvalidArgument, r"\[0\].negative_advantages_only: needs advantages"):
            self.evaluate(run, records, regions=[region], outputs=(), algorithm=None, advantages=None)
        with self.assertRaisesRegex(sis.InvalidArgument, "9 regions, at most 8"):
            self.evaluate(run, records, regions=9 * [sis.SequenceTrustRegion("k1", "sum", upper=1.0)])
        for region, words in ((("k4", "sum"), "divergence 'k4' is none of"), (("k1", "last"), "aggregate 'last'")):
            with self.assertRaisesRegex(ValueError, words):
                self.evaluate(run, records, regions=[sis.SequenceTrustRegion(*region, upper=1.0)])


if __name__ == "__main__":
    unittest.main()
