"""Blocks whose sets end where the run's mass leaves them: records, digests and decisions are those of
whole sets, whoever cuts."""

import hashlib
import unittest
import unittest.mock

import numpy as np
from server.testing.live_server import LiveServer

import sis
from sis import ragged
from sis.append_streams import encoded_entries, server_append
from sis.v1 import ratio_service_pb2 as pb
from tests.reference import numerics

VOCABULARY, TOP_K, ROWS = 200, 40, 1000
SAMPLING = sis.Sampling("raw")


def log_softmax(rows, seed, scale=4.0):
    logits = np.random.default_rng(seed).normal(size=(rows, VOCABULARY)) * scale
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


def record(rows=ROWS, seed=1, scale=4.0, top_k=TOP_K):
    """Some sets are empty, or short."""
    values = log_softmax(rows, seed, scale)
    random = np.random.default_rng(seed)
    sampled = random.integers(VOCABULARY, size=rows)
    sampled[::2] = values[::2].argmax(axis=1)
    made = sis.canonical(
        np.broadcast_to(np.arange(VOCABULARY), values.shape), values, sampled,
        np.take_along_axis(values, sampled[:, None], 1)[:, 0], top_k,
    )  # fmt: skip
    lengths = np.where(random.random(rows) < 0.2, random.integers(0, top_k + 1, rows), top_k)
    unused = np.arange(top_k) >= lengths[:, None]
    made.top_k_ids[unused], made.top_k_log_probs[unused] = -1, -np.inf
    return made


def ragged_form(made):
    counts = (made.top_k_ids >= 0).sum(axis=1)
    used = np.arange(made.top_k_ids.shape[1]) < counts[:, None]
    return {
        "sampled_ids": made.sampled_ids,
        "sampled_log_probs": made.sampled_log_probs,
        "top_k_ids": made.top_k_ids[used],
        "top_k_log_probs": made.top_k_log_probs[used],
        "top_k_counts": counts,
    }


def cut_by_reference(columns, mass):
    sampled_ids, sampled_log_probs, ids, log_probs = columns
    records = numerics.Records(
        positions=np.arange(len(ids), dtype=np.uint32), sampled_ids=sampled_ids,
        sampled_log_probs=sampled_log_probs, ids=ids, log_probs=log_probs,
    )  # fmt: skip
    return numerics.cut_to_mass(records, mass)


class CutTest(unittest.TestCase):
    def test_it_leaves_what_the_server_keeps_and_hardly_more(self):
        for top_k in (1, 3, 40):
            for scale in (0.5, 2.0, 6.0):
                columns = list(record(600, int(scale * 10), scale, top_k))
                used = (columns[2] >= 0).sum(axis=1)
                for mass in (0.2, 0.9, 0.97, 0.9999):
                    kept = cut_by_reference(columns, mass)
                    left = ragged.cut(columns, mass)
                    if len(left) == 4:
                        continue
                    counts = left[4].astype(int)
                    wanted = (kept.ids >= 0).sum(axis=1)
                    self.assertTrue((wanted <= counts).all() and (counts <= used).all())
                    self.assertLessEqual((counts - wanted).mean(), wanted.mean() / 40)
                    wide = ragged.padded(left, top_k)
                    again = cut_by_reference(wide, mass)
                    for one, other in zip(again, kept):
                        self.assertEqual(one.tobytes(), other.tobytes())
                    prefix = np.arange(top_k) < counts[:, None]
                    np.testing.assert_array_equal(wide[2][prefix], columns[2][prefix])

    def test_sets_that_are_whole_are_sent_so(self):
        full = record(100, scale=0.1)
        full = full._replace(top_k_ids=np.arange(100 * TOP_K, dtype=np.int32).reshape(100, TOP_K))
        full.top_k_log_probs[:] = np.log(0.5 / TOP_K)
        self.assertEqual(len(ragged.cut(full, 0.97)), 4)
        full.top_k_ids[:50, 3:], full.top_k_log_probs[:50, 3:] = -1, -np.inf
        counts = ragged.cut(full, 0.97)[4]
        np.testing.assert_array_equal(counts, np.repeat([3, TOP_K], 50))

    def test_what_is_wrong_is_left_to_be_refused(self):
        made = record(60)
        made.top_k_ids[0, :2], made.top_k_log_probs[0, 1:] = 5, np.nan
        made.top_k_ids[1, 0], made.top_k_log_probs[1, 0] = -1, -np.inf
        made.top_k_log_probs[2] = np.inf
        made.top_k_ids[3:6], made.top_k_log_probs[3:6] = -1, -np.inf
        made.top_k_ids[3, 9] = 7
        made.top_k_log_probs[4, 9] = -1
        counts = ragged.cut(made, 0.9)[4]
        np.testing.assert_array_equal(counts[[0, 2, 3, 4, 5]], [2, 1, 10, 10, 0])
        self.assertGreater(counts[1], 1)


class RaggedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = [LiveServer(cache_bytes=64 << 20) for _ in range(2)]
        for server in cls.servers:
            cls.addClassCleanup(server.close)

    def setUp(self):
        self.client = self.connect(self.servers[0].address)
        # What is sent.
        self.blocks = []
        made = server_append.encoded_entries.request

        def request(batch):
            data, offset = made(batch)
            for entry in pb.AppendRequest.FromString(data).batch.entries:
                self.blocks.append(entry.block)
            return data, offset

        patch = unittest.mock.patch.object(server_append.encoded_entries, "request", request)
        patch.start()
        self.addCleanup(patch.stop)

    def connect(self, address):
        client = sis.Client(address, timeout=30)
        self.addCleanup(client.close)
        return client

    def create(self, name, client=None, **settings):
        return (client or self.client).create_run(
            f"{self.id().split('.')[-1]}-{name}", seed=7, vocabulary_size=VOCABULARY, top_k=TOP_K,
            **{"mass": 0.95, **settings},
        )  # fmt: skip

    def whole(self):
        """Within it nothing is cut here."""
        return unittest.mock.patch.object(encoded_entries, "_CUT_BYTES", 1 << 62)

    def append(self, run, *blocks, client=None):
        return (client or self.client).append_many(run, blocks, sampling=SAMPLING)

    def told(self, run, sequences, client=None):
        """Records, digests and decisions."""
        client = client or self.client
        records = client.fetch_top_k(run, sequences)
        log_probs, sampled = sis.gather(records, log_softmax(len(records), seed=50))
        evaluation = client.evaluate(
            run, records, draw=3, log_probs=log_probs, sampled_log_probs=sampled, outputs=["decisions", "ratios"]
        )
        arrays = (
            records.ids, records.log_probs, records.sampled_ids, records.sampled_log_probs, evaluation.decisions,
            evaluation.ratios,
        )  # fmt: skip
        self.assertGreater(evaluation.totals.accepted, len(records) / 40)
        digests = [hashlib.sha256(array.tobytes()).hexdigest() for array in arrays]
        return digests, records.slices, records.missing, evaluation.totals

    def test_whoever_cuts_the_record_is_the_same(self):
        for encoding in ("float32", "fixed16"):
            run = self.create(encoding, log_prob_encoding=encoding)
            other = self.create(f"{encoding}-whole", log_prob_encoding=encoding)
            blocks = [sis.Block(name, 0, 0, *record(seed=seed)) for seed, name in enumerate(("a", "b"))]
            self.append(run, *blocks)
            sent = list(self.blocks)
            self.blocks.clear()
            with self.whole():
                self.append(other, *blocks)
            for cut, block in zip(sent, self.blocks, strict=True):
                self.assertEqual(len(cut.top_k_counts), 2 * ROWS)
                self.assertEqual(len(block.top_k_counts), 0)
                self.assertLess(3 * len(cut.top_k_ids), len(block.top_k_ids))
            self.assertEqual(self.told(run, ["a", "b"]), self.told(other, ["a", "b"]))
            # Each is acked again, whichever way it comes.
            self.append(other, *blocks)
            with self.whole():
                self.append(run, *blocks)
            self.blocks.clear()

    def test_short_blocks_and_runs_without_a_mass_are_sent_whole(self):
        self.append(self.create("short"), sis.Block("s", 0, 0, *record(16)))
        self.append(self.create("no-mass", mass=0.0), sis.Block("s", 0, 0, *record()))
        self.assertEqual([len(block.top_k_counts) for block in self.blocks], [0, 0])

    def test_a_server_that_knows_of_no_mass_is_sent_whole_sets(self):
        get_run = self.client._service.GetRun

        def without_mass(request):
            answer = get_run(request)
            answer.run.config.ClearField("mass")
            return answer

        with unittest.mock.patch.object(self.client._service, "GetRun", without_mass):
            run = self.create("r")
        self.assertEqual(run.config.mass, 0)
        self.append(run, sis.Block("s", 0, 0, *record()))
        self.append(run, sis.Block("t", 0, 0, **ragged_form(record())))
        self.assertEqual([len(block.top_k_counts) for block in self.blocks], [0, 0])
        self.assertEqual(self.told(run, ["s"])[0][:4], self.told(run, ["t"])[0][:4])
        self.assertEqual(self.client.get_run(run.id).run.config.mass, 0.95)

    def test_ragged_blocks_are_taken_as_they_are(self):
        made = record()
        run, other = self.create("r"), self.create("whole")
        with self.client.append(run, sampling=SAMPLING) as stream:
            # Cut by the caller, too late.
            stream.block("s", first_position=0, policy_version=0, **ragged_form(made))
            stream.seal("s", length=ROWS)
        (block,) = [block for block in self.blocks if block.sampled_ids]
        self.assertEqual(np.frombuffer(block.top_k_counts, "<u2").sum(), len(block.top_k_ids) // 4)
        with self.whole():
            self.append(other, sis.Block("s", 0, 0, *made), sis.Seal("s", ROWS))
        self.assertEqual(self.told(run, ["s"]), self.told(other, ["s"]))
        # Without a mass the same sets, padded here.
        plain = self.create("plain", mass=0.0)
        self.append(plain, sis.Block("s", 0, 0, *made), sis.Block("s", 0, 0, **ragged_form(made)))

    def test_over_replicas(self):
        several = self.connect([server.address for server in self.servers])
        run, other = self.create("r", several), self.create("whole", several)
        names = [f"s{index}" for index in range(8)]
        blocks = [sis.Block(name, 0, 0, *record(400, seed)) for seed, name in enumerate(names)]
        self.append(run, *blocks, client=several)
        self.assertEqual({len(block.top_k_counts) for block in self.blocks}, {800})
        with self.whole():
            self.append(other, *blocks, client=several)
        self.blocks.clear()
        with several.append(run, sampling=SAMPLING) as stream:
            for block in blocks:
                stream.block(block.sequence, **dict(list(block._asdict().items())[1:]))
        self.assertEqual({len(block.top_k_counts) for block in self.blocks}, {800})
        told = self.told(run, names, several)
        self.assertEqual(told[0][:4], self.told(other, names, several)[0][:4])
        self.assertEqual(told[2], ())

    def test_shapes_and_counts_are_checked_before_anything_is_sent(self):
        run, good = self.create("r"), ragged_form(record(10))
        total = len(good["top_k_ids"])
        wrong = {
            "top_k_counts": (
                (good["top_k_counts"][:9], r"top_k_counts has shape \[9\], must be \[10\]"),
                (np.full(10, TOP_K + 1), rf"top_k_counts, position 0: {TOP_K + 1} is not in \[0, {TOP_K}\]"),
                (np.full(10, -1), "top_k_counts, position 0: -1 is not in"),
                (np.full(10, 0.5), "top_k_counts has dtype float64, must be integers"),
                (np.zeros(10, int), rf"top_k_ids has shape \[{total}\], must be \[0\]"),
            ),
            "top_k_log_probs": (
                (good["top_k_log_probs"][:3], rf"top_k_log_probs has shape \[3\], must be \[{total}\]"),
            ),
            "top_k_ids": ((np.zeros((10, TOP_K), int), r"top_k_ids has shape \[10, 40\]"),),
        }
        for name, cases in wrong.items():
            for value, message in cases:
                with self.assertRaisesRegex(ValueError, message):
                    self.append(run, sis.Block("s", 0, 0, **{**good, name: value}))
        self.assertEqual(self.blocks, [])
        # What only the server can tell.
        bad = {**good, "top_k_ids": np.full(total, 3)}
        with self.assertRaisesRegex(sis.AppendError, "position .*, slot 1: id 3"):
            self.append(run, sis.Block("s", 0, 0, **bad))


if __name__ == "__main__":
    unittest.main()
