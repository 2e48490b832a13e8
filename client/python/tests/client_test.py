import socket
import subprocess
import sys
import unittest
import unittest.mock

import numpy as np

import fake_service
import sis

SAMPLING = sis.Sampling("raw")
TOP_K = 4
VOCABULARY = 32


def log_softmax(rows, seed):
    logits = np.random.default_rng(seed).normal(size=(rows, VOCABULARY)).astype(np.float32)
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


def record(rows, seed):
    values = log_softmax(rows, seed)
    ids = np.broadcast_to(np.arange(VOCABULARY), values.shape)
    sampled = np.random.default_rng(seed + 1000).integers(VOCABULARY, size=rows)
    sampled[::2] = values[::2].argmax(axis=1)
    return sis.canonical(ids, values, sampled, np.take_along_axis(values, sampled[:, None], 1)[:, 0], TOP_K)


REDUCED = ("sampled_log_probs", "log_envelopes", "covered_masses")


class ClientTest(fake_service.ServiceTest):
    def setUp(self):
        super().setUp()
        self.run_ = self.client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding="float32")

    def append(self, sequence, rows, first=0, seed=0, attempt=0):
        kept = record(rows, seed)
        with self.client.append(self.run_, sampling=SAMPLING) as stream:
            stream.block(sequence, first_position=first, policy_version=0, attempt=attempt, **kept._asdict())
        return kept

    # Runs.

    def test_a_run_has_the_requested_config(self):
        settings = {
            "seed": 2**63,
            "vocabulary_size": 100,
            "top_k": 7,
            "max_staleness": 0,
            "time_to_live": 2.5,
            "byte_quota": 1 << 30,
            "log_prob_encoding": "float32",
            "task": "addition",
            "algorithm": "grpo",
            "model": "small",
            "evict_unread": True,
            "mass": 0.97,
        }
        run = self.client.create_run("other", **settings)
        self.assertEqual(run, sis.Run("other", 1, sis.RunConfig(**settings)))
        status = self.client.get_run("other")
        self.assertEqual(status.run, run)
        self.assertIsNone(status.last_draw)
        self.assertEqual([s.run.id for s in self.client.list_runs()], ["other", "run"])
        self.assertIsNone(self.run_.config.max_staleness)
        self.assertIsNone(self.client.get_run("run").run.config.max_staleness)

    def test_an_attempt_to_connect_that_gets_no_answer_is_given_up(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            # Without a limit on the attempt, the call would wait for it until the call's deadline.
            with sis.Client(address, timeout=15) as client, self.assertRaises(sis.Unavailable):
                client.list_runs()

    def test_a_server_that_lost_a_run_gets_its_labels_again(self):
        self.client.advance_version(self.run_, 0, "first")
        self.client.advance_version(self.run_, 3, "step-3")
        # Refused: it is not announced again.
        with self.assertRaises(sis.AlreadyExists):
            self.client.advance_version(self.run_, 5, "step-3")
        # From another client, which has looked the run up.
        with sis.Client(self.address) as other:
            other.advance_version(other.get_run("run").run, 7, "step-7")
            self.client.get_run("run")
        del self.service.runs["run"]
        self.client.list_steps(self.run_)
        status = self.client.get_run("run")
        self.assertEqual(status.policy_version, 7)
        self.assertEqual(status.version_labels, {"first": 0, "step-3": 3, "step-7": 7})

    # FetchTopK.

    def test_cut_takes_parts_of_slices(self):
        for index, name in enumerate("abc"):
            self.append(name, 3 + index, first=index, seed=index)
        records = self.client.fetch_top_k(self.run_, ["a", sis.Slice("c", 1, 7), sis.Slice("b", length=5)])
        # Cuts c to the positions 4 to 6, then 1 to 4. Keeps b whole; its positions 0 and 4 are missing.
        some = records.cut([(1, 3, 3), (1, 0, 4), (2, 0, 5), (0, 2, 1)])
        ranges = [(part.sequence, part.first_position, part.length) for part in some.slices]
        self.assertEqual(ranges, [("c", 4, 3), ("c", 1, 4), ("b", 0, 5), ("a", 2, 1)])
        self.assertEqual(some.slices[2], records.slices[2])
        self.assertEqual([part.record_digest is None for part in some.slices], [True, True, False, True])
        own = np.r_[6:9, 3:7, 10:15, 2:3]
        for name in ("counts", "ids", "log_probs", "sampled_ids", "sampled_log_probs"):
            np.testing.assert_array_equal(getattr(some, name), getattr(records, name)[own])
        np.testing.assert_array_equal(some.present, records.present[own])
        self.assertEqual(some.keep_seconds, records.keep_seconds)
        for part in ((1, 0, 0), (1, 5, 3), (1, -1, 2)):
            with self.assertRaisesRegex(ValueError, "part 1 has rows .*within the 7 of slice 1"):
                records.cut([(0, 0, 3), part])

    # Evaluate.

    def test_evaluate_sends_what_was_fetched_and_asked_for(self):
        records = self.fetched()
        self.evaluate(records, draw=2**40, top_k=3)
        (request,) = self.service.evaluations
        self.assertEqual((request.draw, request.top_k, request.keep_seconds), (2**40, 3, 60))
        self.assertEqual([p.record_digest for p in request.slices], [p.record_digest for p in records.slices])

    def fetched(self):
        self.append("a", 6, seed=1)
        self.append("b", 5, seed=2)
        return self.client.fetch_top_k(self.run_, ["a", "b"], keep_seconds=60)

    def test_evaluate_takes_one_form(self):
        arrays = dict.fromkeys(("log_probs", "log_envelopes", "covered_masses"), np.zeros(1, np.float32))
        for names in ((), ("log_envelopes",), ("log_probs", "covered_masses"), tuple(arrays)):
            with self.assertRaisesRegex(ValueError, "either log_probs, or both"):
                self.client.evaluate(
                    self.run_, [sis.Slice("a", length=1)], draw=1, sampled_log_probs=[0.0],
                    **{name: arrays[name] for name in names},
                )
        self.assertEqual(self.service.evaluations, [])


    def evaluate(self, records, **options):
        log_probs, sampled_log_probs = sis.gather(records, log_softmax(len(records), seed=5))
        values = {"log_probs": log_probs, "sampled_log_probs": sampled_log_probs, "draw": 1, **options}
        return self.client.evaluate(self.run_, records, **values)

    def test_sampled_ids_take_as_few_bytes_as_the_vocabulary_allows(self):
        cases = (
            # The vocabulary, ids, and the width that they are sent with.
            (VOCABULARY, [0, VOCABULARY - 1, 1], 2),
            (1 << 16, [0, (1 << 16) - 1, 258], 2),
            ((1 << 16) + 1, [0, 1 << 16, 3], 3),
            (1 << 24, [0, (1 << 24) - 1, 3], 3),
            ((1 << 24) + 1, [0, 1 << 24, 3], 4),
            # Ids that are none of it, so that the service refuses them.
            (1 << 16, [1, 1 << 16, 2], 4),
            (1 << 16, [1, -1, 2], 4),
        )
        for vocabulary_size, ids, width in cases:
            run = self.client.create_run(f"run {vocabulary_size}", seed=1, vocabulary_size=vocabulary_size, top_k=1)
            for mask in (None, [True, False, True]):
                self.client.evaluate(
                    run, [sis.Slice("none", length=3)], draw=1, **dict.fromkeys(REDUCED, np.zeros(3, np.float32)),
                    options=sis.EvaluateOptions(sampled_ids=np.array(ids), mask=mask),
                )
                # The second id, which is masked, is the one that is not in the vocabulary.
                expected = ids if mask is None else [ids[0], 0, ids[2]]
                widest = width if mask is None else next(w for w in (2, 3, 4) if vocabulary_size <= 1 << 8 * w)
                sent = self.service.evaluations[-1].sampled_ids
                want = b"".join((i % (1 << 32)).to_bytes(4, "little")[:widest] for i in expected)
                self.assertEqual(sent, want, (vocabulary_size, mask))
        with self.assertRaisesRegex(ValueError, r"sampled_ids has shape \[2\], must be \[3\]"):
            self.client.evaluate(
                run, [sis.Slice("none", length=3)], draw=1, **dict.fromkeys(REDUCED, np.zeros(3, np.float32)),
                options=sis.EvaluateOptions(sampled_ids=[1, 2]),
            )

    def test_a_batch_of_which_nothing_is_left_is_decided_without_the_server(self):
        records = self.client.fetch_top_k(self.run_, ["none", "nothing"])
        self.assertEqual(len(records), 0)
        evaluation = self.evaluate(records, outputs=["decisions", "ratios"], prefix_curve=[1, 2])
        self.assertEqual((len(evaluation.accepted), len(evaluation.decisions)), (0, 0))
        self.assertEqual((len(evaluation.ratios), evaluation.log_ratios), (0, None))
        self.assertEqual(evaluation.totals, sis.Totals())
        self.assertEqual(evaluation.slice_totals, (sis.Totals(),) * 2)
        self.assertEqual([point.top_k for point in evaluation.prefix_curve], [1, 2])
        self.assertEqual((evaluation.missing, evaluation.log_ratio_sums), ((), ()))
        gspo = sis.EvaluateOptions(algorithm=sis.Gspo())
        sums = self.evaluate(records, outputs=["surrogates"], options=gspo).log_ratio_sums
        self.assertEqual(sums, (sis.LogRatioSum(0, 0),) * 2)
        self.assertEqual(self.service.evaluations, [])
        # A batch without slices is the service's to refuse.
        with self.assertRaises(sis.InvalidArgument):
            self.evaluate(records.select([]))

    def test_shapes_and_names_are_checked_before_anything_is_sent(self):
        records = self.fetched()
        with self.assertRaisesRegex(ValueError, r"log_probs has shape \[11, 5\], must be \[11, 4\]"):
            self.evaluate(records, log_probs=np.zeros((11, 5)))
        with self.assertRaisesRegex(ValueError, r"sampled_log_probs has shape \[10\], must be \[11\]"):
            self.evaluate(records, sampled_log_probs=np.zeros(10))
        with self.assertRaisesRegex(ValueError, "output 'accept' must be one of accepted, decisions"):
            self.evaluate(records, outputs=["accept"])
        self.assertEqual(self.service.evaluations, [])

    def test_one_string_is_no_list_of_strings(self):
        records = self.fetched()
        for one in ("ab", sis.SequenceRef("a"), b"ab"):
            with self.assertRaisesRegex(ValueError, "slices is .*a.*, must be a list: "):
                self.client.fetch_top_k(self.run_, one)
            with self.assertRaisesRegex(ValueError, "sequences is .*, must be a list: "):
                self.client.release(self.run_, one)
        with self.assertRaisesRegex(ValueError, "outputs is 'ratios', must be a list"):
            self.evaluate(records, outputs="ratios")
        with self.assertRaisesRegex(ValueError, "records is 'a', must be a list"):
            self.client.evaluate(self.run_, "a", draw=1, **dict.fromkeys(REDUCED, []))
        self.assertEqual(self.client.get_run("run").sequences, 2)

    def test_torch_is_not_imported_for_numpy(self):
        code = "import sys, sis; sys.exit('torch' in sys.modules)"
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)


if __name__ == "__main__":
    unittest.main()
