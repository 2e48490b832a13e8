"""Comparisons of little data and of much, and their reports of omitted data."""

import itertools
import math
import unittest

import numpy as np
from changed_recordings import (
    as_file, changed, compared, each_token, entry, faults, merged, recorded, with_lists_of_next, without_ids,
    without_lists,
)  # fmt: skip

from sis.diagnose import RecordedFile, compare, read_file
from sis.diagnose.check import CLEAR, UNTESTED
from sis.diagnose.recorded import Token

FLOAT32, FOUR_BIT = recorded("float32"), recorded("4_bit")


def left_out_of(comparison):
    return [f"{part.positions} {part.reason}" for part in comparison.diagnosis.left_out]


def of_ids(counts, sampled, sampled_log_probs, listed, log_probs, lengths):
    """A file in arrays, of ids."""
    tokens = tuple(Token(i, None) for i in range(int(max(sampled.max(), listed.max(initial=0))) + 1))
    arrays = (lengths, sampled, sampled_log_probs.astype(np.float32), counts, listed, log_probs.astype(np.float32))
    return RecordedFile("file", *arrays, tokens, {})


def p(sampled, log_prob, *top):
    """A position whose tokens have an id or a text."""

    def of(token, log_prob, top=None):
        return entry(token, None, log_prob, top) if isinstance(token, int) else entry(None, token, log_prob, top)

    return of(sampled, log_prob, [of(*token) for token in top])


class ComparisonTest(unittest.TestCase):
    def test_tokens_shown_as_bytes_or_as_letters_of_the_tokenizer_are_the_same(self):
        spelled = each_token(FOUR_BIT, lambda token: {"token": token["token"].replace(" ", "Ġ")})
        self.assertEqual(faults(FLOAT32, spelled), [])

    def test_faults_of_texts(self):
        other = each_token(FOUR_BIT, lambda token: {"token": token["token"] + "x"})
        for a, b, fault in (
            (FLOAT32, other, "token_texts"),
            (FOUR_BIT, merged(FLOAT32), "segmentation"),
            (without_ids(FOUR_BIT), without_ids(merged(FLOAT32)), "segmentation"),
        ):
            self.assertEqual((faults(a, b), faults(b, a)), ([fault], [fault]))

    def test_real_engines_that_differ_numerically_have_no_fault(self):
        engines = [FLOAT32, recorded("bfloat16"), FOUR_BIT]
        for a, b in itertools.product(engines, engines):
            for change in (lambda file: file, without_ids, without_lists):
                self.assertEqual(faults(change(a), change(b)), [])
        for engine in engines:
            own_text = recorded("4_bit_own_text")
            self.assertEqual((faults(engine, own_text), faults(own_text, engine)), ([], []))

    def test_too_little_data_gives_no_finding(self):
        comparison = compared([FLOAT32[0][:1]], [FOUR_BIT[0][:1]])
        self.assertFalse(comparison.diagnosis.fault)
        for check in comparison.diagnosis.checks:
            if check.name != "token_texts":  # ten ids are enough for it
                self.assertEqual(check.outcome, UNTESTED, check.name)
                self.assertTrue(check.finding)
        for nothing in ([[]], []):
            self.assertIn("nothing to compare", compared(nothing, nothing).diagnosis.verdict[0])

    def test_omitted_data_is_counted_by_position(self):
        swapped = list(FOUR_BIT)
        swapped[1], swapped[4] = swapped[4], swapped[1]
        shorter = list(FOUR_BIT)
        shorter[2] = shorter[2][:7]

        unscored = changed(FOUR_BIT, lambda own: {"logprob": None, "top_logprobs": own["top_logprobs"][:1]})
        shifted = with_lists_of_next(FOUR_BIT)
        others = recorded("bfloat16"), recorded("4_bit_own_text"), [sequence[1:] for sequence in FOUR_BIT]
        for b in (*others, swapped, shorter, unscored, shifted):
            for comparison in (compared(FLOAT32, b), compared(b, FLOAT32)):
                parts = comparison.diagnosis.left_out
                self.assertTrue(all(part.positions > 0 for part in parts))
                left_out = sum(part.positions for part in parts)
                pair = comparison.compared.pair
                every = int(np.maximum(pair.a.lengths, pair.b.lengths).sum())
                self.assertEqual(comparison.diagnosis.d.positions + left_out, every)
        self.assertEqual(left_out_of(compared(FLOAT32, FLOAT32)), [])
        both = sum(max(len(FLOAT32[i]), len(swapped[i])) for i in (1, 4))
        for a, b, expected in (
            (FLOAT32, swapped,
             f"{both - 2} after a token that the files sampled differently (in 2 of {len(FLOAT32)} sequences)"),
            (FLOAT32, shorter, "that only A has"),
            (shorter, FLOAT32, "that only B has"),
            (FLOAT32, unscored, "where B gives no log-prob of A's token"),
            (unscored, FLOAT32, "where A gives no log-prob of its own token"),
            (FLOAT32, shifted, "where B's list and its own token's log-prob sum to more than 1"),
        ):  # fmt: skip
            self.assertIn(expected, "\n".join(left_out_of(compared(a, b))))

    def test_a_sequence_may_be_long(self):
        """Quadratic time in the positions would exceed the test's time limit."""
        size = 200_000
        none = np.zeros(0, np.int64)
        sampled = np.arange(size) % 1000
        file = of_ids(np.zeros(size, np.int64), sampled, np.full(size, -1.0), none, none, np.array([size]))
        self.assertEqual(len(compare(file, file).compared), size)

    def test_a_list_may_be_long(self):
        """Quadratic time in the tokens of a list would exceed the test's time limit."""
        tokens, size = 1 << 16, 6
        counts, lengths = np.full(size, tokens), np.array([size])
        ids = np.tile(np.arange(tokens), size)
        rows = np.repeat(np.arange(size), tokens)
        log_probs = -11.2 - ((ids + rows) % 1000 - 500) / 10_000
        sampled = 1000 * np.arange(size)
        files = [
            of_ids(counts, sampled, values.reshape(size, -1)[np.arange(size), sampled], ids, values, lengths)
            for values in (log_probs, log_probs - 0.001)
        ]
        comparison = compare(*files)
        decisions = comparison.compared.decisions
        self.assertEqual(decisions.summary()["unscored"], 0, "tokens far down the list are found")
        self.assertEqual(decisions.top_k, 254)
        self.assertEqual(left_out_of(comparison), [])

    def test_every_check_states_its_evidence(self):
        for name in ("4_bit", "float32_temperature_0.7", "float32_top_p_0.9"):
            for check in compared(FLOAT32, recorded(name)).diagnosis.checks:
                self.assertTrue(check.question and check.statistic and check.setting, check.name)
                self.assertEqual(check.outcome == CLEAR, not check.finding, check.name)

    def test_the_text_of_a_token(self):
        for token, text in (('"id": 1, "token": "x"', "x"), ('"id": 2', "#2"), ('"bytes": [168]', "\ufffd")):
            content = f'{{"logprobs": {{"content": [{{{token}, "logprob": -1, "top_logprobs": []}}]}}}}'
            comparison = compare(read_file("a", content), read_file("b", content))
            self.assertEqual(comparison.as_json()["positions"][0]["token"], text)


class PairTest(unittest.TestCase):
    """How two files become lists over one vocabulary."""

    def read(self, positions):
        pair = compared([positions], [positions]).compared.pair
        lists = pair.a.lists
        ids = [part.tolist() for part in np.split(lists.ids, lists.starts[1:])]
        return pair.a, ids

    def test_lists(self):
        for name, positions, expected, top_k in (
            ("sorted by log-prob, then id", [p(5, -3, (9, -2), (7, -3), (5, -3), (8, -0.5))], [[8, 9, 5, 7]], 4),
            ("equal as float32 is a tie", [p(1, -1.1, (2, -1.1), (1, -1.1 + 1e-12))], [[1, 2]], 2),
            ("-inf and repetitions are dropped",
             [p(1, -math.inf, (1, -math.inf), (2, -1), (3, -2), (2, -1))], [[2, 3]], 2),
            ("a sampled token one beyond the others is appended",
             [p(1, -0.5, (1, -0.5), (2, -2)), p(9, -7, (1, -0.5), (2, -2), (9, -7)), p(2, -2, (1, -0.5), (2, -2))],
             [[1, 2], [1, 2], [1, 2]], 2),
            # Cut to three: the least probable of a list may be the third or any below, so only two are known for sure.
            ("a sampled token that stands first out of order is appended",
             [p(9, -7, (9, -7), (1, -0.5), (2, -2)), p(2, -2, (2, -2), (1, -0.5), (3, -4))], [[1, 2], [1, 2, 3]], 2),
            ("a sampled token of the last rank is not appended",
             [p(2, -2, (1, -0.5), (2, -2)), p(1, -0.5, (1, -0.5), (2, -2)), p(1, -0.5, (1, -0.5))],
             [[1, 2], [1, 2], [1]], 2),
            # As of lists that belong to another position, into which an engine has put the sampled token.
            ("a sampled token that its list leaves no space for is taken out",
             [p(5, -0.1, (5, -0.1), (2, -0.2), (3, -3))], [[2, 3]], 2),
            ("a sampled token with two log-probs keeps its list's",
             [p(5, -0.1, (5, -0.1), (2, -0.2), (5, -3), (3, -4))], [[2, 5, 3]], 3),
            ("of equal texts the most probable stays", [p("a", -1, ("a", -1), ("b", -3), ("c", -2.5), ("b", -2))],
             [[0, 1, 2]], 3),
        ):  # fmt: skip
            with self.subTest(name):
                recording, ids = self.read(positions)
                self.assertEqual(ids, expected)
                self.assertEqual(recording.top_k, top_k)

    def test_the_sampled_log_prob_is_that_of_its_slot(self):
        recording, _ = self.read([p(1, -0.5, (1, -0.25), (2, -3))])
        self.assertEqual(recording.sampled_log_probs.tolist(), [-0.25])
        self.assertEqual(recording.given.tolist(), [-0.5])

    def test_tokens_without_ids_are_matched_by_text(self):
        a = [[p("a", -1, ("a", -1), ("b", -2))]]
        b = [[entry(77, "b", -1, [entry(77, "b", -1), entry(78, "c", -2), entry(79, "a", -3)])]]
        pair = compared(a, b).compared.pair
        self.assertFalse(pair.by_id)
        of_a, of_b = pair.a.sampled[0], pair.b.sampled[0]
        self.assertEqual(pair.a.lists.ids.tolist(), [of_a, of_b])
        self.assertEqual(pair.b.lists.log_probs_of(np.array([0]), np.array([of_a])).tolist(), [-3])

    def test_a_file_keeps_its_texts(self):
        a = [[entry(1, "x", -1, [entry(1, "x", -1), entry(2, "y", -2)])]]
        b = [[entry(1, "z", -1, [entry(1, None, -1), entry(3, None, -2)])]]
        pair = compared(a, b).compared.pair
        self.assertEqual((dict(pair.a.texts), dict(pair.b.texts)), ({1: "x", 2: "y"}, {1: "z"}))

    def test_what_cannot_be_is_refused(self):
        good = [[p(1, -1, (1, -1))]]
        for b, message in (
            ([[p(1, -1, (1, -1)), p(1, -1, (2, -1), (2, -2))]],
             "b.json: sequence 0: position 1: top_logprobs gives token 2 both -1 and -2"),
            ([[p(1, -1, (1, -1)), p(1, -1, (2, 0), (3, -2))]],
             "b.json: sequence 0: position 1: the probabilities of top_logprobs sum to 1.13"),
            ([[p("a", -1)]], "tokens can't be matched"),
            ([*good, *good], "a.json holds 1 sequences, b.json 2"),
        ):  # fmt: skip
            with self.assertRaises(ValueError) as raised:
                compare(as_file("a.json", good), as_file("b.json", b))
            self.assertIn(message, str(raised.exception))


if __name__ == "__main__":
    unittest.main()
