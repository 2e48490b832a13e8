"""The server gives the bytes of the numpy numerics: on random, edge and recorded input, in every form."""

import dataclasses
import json
import os
import pathlib
import unittest

import numpy as np

import sis
from server.testing.live_server import LiveServer
from server.testing.random_records import drawn, log_softmax
from tests.integration.live_server import LiveServerTest
from tests.reference import block, numerics

SEED = 12345
RECORDED = os.environ.get("SIS_RECORDED_DATA")
COUNTS = ("accepted", "rejected", "outside_top_k", "missing", "envelope_violations")
OUTPUTS = ("decisions", "ratios", "log_ratios", "acceptance_probabilities")
DRAWS = (0, 7, 2**40)
# K, vocabulary, positions, how far the policies' logits differ, and the mass at which sets are cut.
RANDOM = [
    *((k, v, 203, drift, 0.0) for k, v in ((1, 5), (2, 2), (10, 64), (50, 300)) for drift in (0.0, 0.05, 1.5)),
    *((10, 64, 203, 0.05, 0.5), (50, 300, 203, 0.05, 0.97), (100, 1000, 103, 0.05, 0.999)),
    *((253, 700, 83, 0.05, 0.0), (254, 700, 83, 0.05, 0.0), (254, 700, 83, 0.05, 0.999)),
]


class NumpyAgreementTest(LiveServerTest):
    @classmethod
    def start_server(cls):
        return LiveServer("--max_top_k=254")

    def check(self, run_id, top_k, vocabulary, record, current, current_sampled, number, mass=0.0):
        """Streams one sequence, evaluates it in all forms, and compares every output with numpy's, byte for byte."""
        run = self.client.create_run(
            run_id, seed=SEED, vocabulary_size=vocabulary, top_k=top_k, log_prob_encoding="float32", mass=mass
        )
        with self.client.append(run, sampling=sis.Sampling("processed", temperature=1.0)) as stream:
            stream.block("s", first_position=0, policy_version=0, **record._asdict())
        fetched = self.client.fetch_top_k(run, ["s"])
        positions = np.arange(len(fetched), dtype=np.uint32)
        records = numerics.Records(positions, *record)
        if mass:
            records = numerics.cut_to_mass(records, mass)
        for name, array in records._asdict().items():
            if name != "positions":
                self.assertEqual(getattr(fetched, name).tobytes(), array.astype(getattr(fetched, name).dtype).tobytes(), name)
        packed = block.read(block.pack(records, vocabulary, block.FLOAT32))
        self.assertEqual(fetched.slices[0].record_digest, block.digest(packed))
        gathered = numerics.Gathered(log_probs=current, sampled_log_probs=current_sampled)
        words = numerics.uniforms(numerics.sequence_key(SEED, 0, "s"), positions, number)
        for k in {(top_k + 1) // 2, top_k}:
            curve = sorted({1, (k + 1) // 2, max(1, k - 1)})
            common = {"draw": number, "sampled_log_probs": current_sampled, "top_k": k, "outputs": OUTPUTS}
            expected = numerics.decide_gathered(records, gathered, k, words)
            for values in (current, current[records.ids != -1]):
                actual = self.client.evaluate(
                    run, fetched, log_probs=values, prefix_curve=curve, total_variation=True, **common
                )
                self.compare(expected, actual)
                points = [
                    (p.top_k, numerics.wire(p.residual_mass), numerics.wire(p.expected_acceptance), len(positions))
                    for p in numerics.prefix_curve(records, gathered, curve)
                ]
                self.assertEqual([dataclasses.astuple(point) for point in actual.prefix_curve], points)
            reduced = numerics.reduce_gathered(records, gathered, k)
            actual = self.client.evaluate(
                run, fetched, log_envelopes=reduced.log_envelopes, covered_masses=reduced.covered_masses, **common
            )
            self.compare(numerics.decide_reduced(records, reduced, k, words), actual)
        inspected = self.client.inspect_sequence(run, "s")
        np.testing.assert_array_equal(inspected.top_k_ids, records.ids[: len(inspected.decisions)])
        return records

    def compare(self, expected, actual):
        for name, mine, theirs in (
            ("decisions", actual.decisions, expected.decisions),
            ("accepted", np.packbits(actual.accepted, bitorder="little"), expected.accept_bits()),
            ("ratios", actual.ratios, expected.ratios),
            ("log-ratios", actual.log_ratios, expected.log_ratios),
            ("a", actual.acceptance_probabilities, expected.acceptance_probabilities),
        ):
            self.assertEqual(bytes(memoryview(mine)), bytes(memoryview(theirs)), name)
        for field, total in dataclasses.asdict(numerics.totals(expected)).items():
            value = total if field in COUNTS else numerics.wire(total)
            self.assertEqual(getattr(actual.totals, field), value, field)

    def test_random(self):
        rng = np.random.default_rng(1)
        for number, (top_k, vocabulary, count, drift, mass) in enumerate(RANDOM):
            logits = rng.normal(size=(count, vocabulary)) * rng.uniform(0.2, 5, size=(count, 1))
            behavior = log_softmax(logits)
            current = log_softmax(logits + drift * rng.normal(size=logits.shape))
            record = drawn(behavior, rng, top_k)
            at_slots = np.take_along_axis(current, np.maximum(record.top_k_ids, 0), axis=1)
            name = f"random-{top_k}-{drift}-{mass}"
            with self.subTest(name):
                kept = self.check(name, top_k, vocabulary, record, at_slots, current[np.arange(count), record.sampled_ids], DRAWS[number % 3], mass)
                used = (kept.ids != -1).sum(axis=1)
                self.assertEqual(used.max(), top_k)
                self.assertEqual(used.min() < top_k, mass > 0)
                ranks = numerics.rank(kept.sampled_ids, kept.ids, kept.log_probs)
                # A rank that no signed byte holds.
                self.assertEqual(((ranks > 127) & (ranks != numerics.NO_RANK)).any(), top_k > 200)

    @unittest.skipUnless(RECORDED, "no recorded log-probs: $SIS_RECORDED_DATA is not set")
    def test_recorded(self):
        for path in sorted(pathlib.Path(RECORDED).glob("*.json")):
            content = json.loads(path.read_text())["logprobs"]["content"]
            top = [entry["top_logprobs"] for entry in content]
            ids = np.array([[slot["id"] for slot in slots] for slots in top], np.int32)
            behavior = np.array([[slot["logprob"] for slot in slots] for slots in top], np.float32)
            sampled = np.array([entry["id"] for entry in content], np.int32)
            sampled_log_probs = np.array([entry["logprob"] for entry in content], np.float32)
            record = sis.canonical(ids, behavior, sampled, sampled_log_probs, 5)
            # Recorded sets, and a current policy a little away from them.
            rng = np.random.default_rng(3)
            noise = rng.normal(size=behavior.shape).astype(np.float32) * np.float32(0.05)
            current = np.minimum(record.top_k_log_probs - np.abs(noise), 0)
            inside = record.top_k_ids == sampled[:, None]
            current_sampled = np.where(
                inside.any(axis=1), np.where(inside, current, 0).sum(axis=1), sampled_log_probs
            ).astype(np.float32)
            self.check(path.stem, 5, 262_208, record, current, current_sampled, 7)


if __name__ == "__main__":
    unittest.main()
