"""The server gives the bytes of the numpy numerics: on random, edge and recorded input, in every
form."""

import dataclasses
import json
import os
import pathlib
import unittest
import unittest.mock

import numpy as np

import sis
from server.testing.live_server import LiveServer
from tests.integration.live_server import LiveServerTest
from tests.reference import block, numerics

SEED = 12345
RECORDED = os.environ.get("SIS_RECORDED_DATA")
FLAGS = ("--max_top_k=254",)
COUNTS = ("accepted", "rejected", "outside_top_k", "missing", "envelope_violations")
OUTPUTS = ("decisions", "ratios", "log_ratios", "acceptance_probabilities")


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def random_positions(rng: np.random.Generator, count: int, vocabulary: int, drift: float):
    """Both policies' log-probs [count, vocabulary], float32, and sampled ids [count]."""
    logits = rng.normal(size=(count, vocabulary)) * rng.uniform(0.2, 5, size=(count, 1))
    behavior = log_softmax(logits).astype(np.float32)
    current = log_softmax(logits + drift * rng.normal(size=logits.shape)).astype(np.float32)
    sampled = (behavior + rng.gumbel(size=behavior.shape)).argmax(axis=1)
    return behavior, current, sampled


class NumpyAgreementTest(LiveServerTest):
    @classmethod
    def start_server(cls):
        return LiveServer(*FLAGS)

    def place(self, array):
        """Returns the array where the trainer has it, such as a device."""
        return array

    def place_record(self, record):
        return {name: self.place(array) for name, array in record._asdict().items()}

    def fetch(self, run):
        return self.client.fetch_top_k(run, ["s"])

    def check(
        self, run_id, top_k, vocabulary, record, current_log_probs, current_sampled, draws=(0, 7, 2**40), mass=0.0
    ):
        """Streams one sequence, evaluates it in both forms, and compares every output with numpy's,
        byte for byte."""
        run = self.client.create_run(
            run_id, seed=SEED, vocabulary_size=vocabulary, top_k=top_k, log_prob_encoding="float32", mass=mass
        )
        with self.client.append(run, sampling=sis.Sampling("processed", temperature=1.0)) as stream:
            stream.block("s", first_position=0, policy_version=0, **self.place_record(record))
        fetched = self.fetch(run)
        positions = np.arange(len(fetched), dtype=np.uint32)
        records = numerics.Records(
            positions=positions,
            ids=fetched.ids,
            log_probs=fetched.log_probs,
            sampled_ids=fetched.sampled_ids,
            sampled_log_probs=fetched.sampled_log_probs,
        )
        gathered = numerics.Gathered(log_probs=current_log_probs, sampled_log_probs=current_sampled)
        key = numerics.sequence_key(SEED, 0, "s")
        packed = block.read(block.pack(records, vocabulary, block.FLOAT32))
        self.assertEqual(fetched.slices[0].record_digest, block.digest(packed))
        for draw in draws:
            for k in {1, (top_k + 1) // 2, top_k}:
                words = numerics.uniforms(key, positions, draw)
                curve = sorted({1, (k + 1) // 2, max(1, k - 1)})
                expected = numerics.decide_gathered(records, gathered, k, words)
                actual = self.client.evaluate(
                    run, fetched, draw=draw, log_probs=self.place(current_log_probs),
                    sampled_log_probs=self.place(current_sampled), top_k=k, outputs=OUTPUTS, prefix_curve=curve,
                    total_variation=True,
                )
                self.compare(expected, actual)
                points = [
                    (p.top_k, numerics.wire(p.residual_mass), numerics.wire(p.expected_acceptance), len(positions))
                    for p in numerics.prefix_curve(records, gathered, curve)
                ]
                self.assertEqual([dataclasses.astuple(point) for point in actual.prefix_curve], points)
                reduced = numerics.reduce_gathered(records, gathered, k)
                expected = numerics.decide_reduced(records, reduced, k, words)
                actual = self.client.evaluate(
                    run, fetched, draw=draw, sampled_log_probs=self.place(current_sampled),
                    log_envelopes=self.place(reduced.log_envelopes), covered_masses=self.place(reduced.covered_masses),
                    top_k=k, outputs=OUTPUTS,
                )
                self.compare(expected, actual)

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
        for top_k, vocabulary in ((1, 5), (2, 2), (10, 64), (50, 300), (100, 1000), (128, 128)):
            for drift in (0.0, 0.05, 1.5):
                behavior, current, sampled = random_positions(rng, 203, vocabulary, drift)
                rows = np.arange(len(sampled))
                ids = np.broadcast_to(np.arange(vocabulary), behavior.shape)
                record = sis.canonical(ids, behavior, sampled, behavior[rows, sampled], top_k)
                at_slots = np.take_along_axis(current, np.maximum(record.top_k_ids, 0), axis=1)
                self.check(
                    f"random-{top_k}-{drift}", top_k, vocabulary, record, at_slots, current[rows, sampled]
                )

    def test_sets_cut_to_their_mass(self):
        rng = np.random.default_rng(5)
        for top_k, vocabulary, mass in ((10, 64, 0.5), (50, 300, 0.97), (100, 1000, 0.999)):
            behavior, current, sampled = random_positions(rng, 203, vocabulary, 0.05)
            rows = np.arange(len(sampled))
            ids = np.broadcast_to(np.arange(vocabulary), behavior.shape)
            record = sis.canonical(ids, behavior, sampled, behavior[rows, sampled], top_k)
            at_slots = np.take_along_axis(current, record.top_k_ids, axis=1)
            self.check(f"mass-{mass}", top_k, vocabulary, record, at_slots, current[rows, sampled], mass=mass)
            sent = numerics.Records(
                rows.astype(np.uint32), record.sampled_ids, record.sampled_log_probs, record.top_k_ids,
                record.top_k_log_probs,
            )
            cut = numerics.cut_to_mass(sent, mass)
            used = (cut.ids != -1).sum(axis=1)
            self.assertTrue(used.min() < used.max() == top_k, used)
            fetched = self.fetch(self.client.get_run(f"mass-{mass}").run)
            self.assertEqual(fetched.ids.tobytes(), cut.ids.tobytes())
            self.assertEqual(fetched.log_probs.tobytes(), cut.log_probs.tobytes())
            self.assertEqual(fetched.sampled_ids.tobytes(), cut.sampled_ids.tobytes())
            self.assertEqual(fetched.sampled_log_probs.tobytes(), cut.sampled_log_probs.tobytes())

    def test_the_largest_sets(self):
        rng = np.random.default_rng(6)
        vocabulary = 700
        for top_k, mass in ((253, 0.0), (254, 0.0), (254, 0.999)):
            behavior, current, sampled = random_positions(rng, 83, vocabulary, 0.05)
            rows = np.arange(len(sampled))
            ids = np.broadcast_to(np.arange(vocabulary), behavior.shape)
            record = sis.canonical(ids, behavior, sampled, behavior[rows, sampled], top_k)
            at_slots = np.take_along_axis(current, record.top_k_ids, axis=1)
            name = f"wide-{top_k}-{mass}"
            self.check(name, top_k, vocabulary, record, at_slots, current[rows, sampled], draws=(7,), mass=mass)
            sent = numerics.Records(
                rows.astype(np.uint32), record.sampled_ids, record.sampled_log_probs, record.top_k_ids,
                record.top_k_log_probs,
            )
            cut = numerics.cut_to_mass(sent, mass) if mass else sent
            used = (cut.ids != -1).sum(axis=1)
            self.assertEqual(used.max(), top_k)
            inside = (cut.ids == sampled[:, None]) & (np.arange(top_k) > 127)
            self.assertTrue(inside.any(), "a rank that no signed byte holds")
            run = self.client.get_run(name).run
            fetched = self.client.fetch_top_k(run, ["s"])
            self.assertEqual(fetched.used_ids.tobytes(), cut.ids[cut.ids != -1].tobytes())
            self.assertEqual(fetched.counts.tolist(), used.tolist())
            words = numerics.uniforms(numerics.sequence_key(SEED, 0, "s"), rows.astype(np.uint32), 9)
            gathered = numerics.Gathered(current[rows, sampled], at_slots)
            expected = numerics.decide_gathered(cut, gathered, top_k, words)
            for at_used in (at_slots, at_slots[cut.ids != -1]):
                actual = self.client.evaluate(
                    run, fetched, draw=9, log_probs=at_used, sampled_log_probs=current[rows, sampled], outputs=OUTPUTS
                )
                self.assertEqual(actual.decisions.tobytes(), expected.decisions.tobytes())
            inspected = self.client.inspect_sequence(run, "s")
            kept = len(inspected.decisions)  # as many as there is room for
            self.assertGreater(kept, 50)
            np.testing.assert_array_equal(inspected.top_k_ids, cut.ids[:kept])

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
            self.check(path.stem, 5, 262_208, record, current, current_sampled)


if __name__ == "__main__":
    unittest.main(verbosity=2)
