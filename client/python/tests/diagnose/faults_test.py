"""Faults made on purpose, each between engines that also differ numerically: each is named, and no other. Noise is not
named, except for its size."""

import dataclasses
import os
import unittest

import numpy as np
from changed_recordings import (
    as_positions, at_temperature, changed, compared, differences, each_token, faults, faults_of, merged, named, recorded,
    renumbered, shortened, verdict, with_lists_from, with_lists_only_from, with_noise, with_presence_penalty,
    with_sampled_from, with_top_k, without_first, without_ids, without_lists,
)  # fmt: skip

from sis.diagnose import read_file

ENGINES = ("float32", "bfloat16", "4_bit")
FLOAT32, BFLOAT16, FOUR_BIT = map(recorded, ENGINES)


class FaultTest(unittest.TestCase):
    def check(self, a, b, *names, says="", back=""):
        """says, back: part of the verdict, and of that with A and B swapped."""
        comparison, swapped = compared(a, b), compared(b, a)
        self.assertEqual(faults_of(comparison), list(names), verdict(comparison))
        self.assertEqual(faults_of(swapped), list(names), verdict(swapped))
        self.assertIn(says, verdict(comparison))
        self.assertIn(back, verdict(swapped))

    def test_a_temperature_of_the_engine(self):
        for name in ENGINES:
            self.check(
                recorded(name), recorded("float32_temperature_0.7"), "temperature",
                says="B looks like A at temperature 0.70", back="A like B at 0.70",
            )  # fmt: skip

    def test_any_temperature(self):
        for temperature in (0.3, 0.5, 0.8, 0.9, 0.95, 1.06, 1.25, 2.0):
            with self.subTest(temperature):
                processed = at_temperature(FLOAT32, temperature)
                self.check(FOUR_BIT, processed, "temperature")
                self.assertEqual(faults(processed, BFLOAT16), ["temperature"])
                self.assertEqual(faults(without_ids(FOUR_BIT), without_ids(processed)), ["temperature"])

    def test_a_filter(self):
        for name in ENGINES:
            raw = recorded(name)
            self.check(
                raw, recorded("float32_top_p_0.9"), "filter",
                says="those of B are processed", back="those of A are processed",
            )  # fmt: skip
            for k in (1, 3, 8):
                self.assertEqual(faults(raw, with_top_k(FOUR_BIT, k)), ["filter"], (name, k))

    def test_a_filter_and_a_temperature(self):
        self.check(FOUR_BIT, with_top_k(at_temperature(FLOAT32, 0.7), 6), "filter", "temperature")

    def test_a_penalty(self):
        for penalty in (-0.6, 0.4, 0.7, 1.5):
            punished = with_presence_penalty(FLOAT32, penalty)
            for raw in (BFLOAT16, FOUR_BIT):
                with self.subTest(penalty):
                    says = "B gives tokens" if penalty > 0 else "A gives tokens"
                    self.check(raw, punished, "penalty", says=says)

    def test_lists_of_other_positions(self):
        for shift in (-2, -1, 1, 2, 3):
            with self.subTest(shift):
                shifted = with_lists_from(FOUR_BIT, shift)
                self.check(
                    FLOAT32, shifted, "lists_shifted",
                    says="The lists of B belong", back="The lists of A belong",
                )  # fmt: skip
                self.assertIn("earlier" if shift > 0 else "later", verdict(compared(FLOAT32, shifted)))
                self.assertEqual(faults(without_ids(FLOAT32), without_ids(shifted)), ["lists_shifted"])

    def test_lists_of_other_positions_beside_log_probs_in_place(self):
        for shift in (-2, -1, 1, 2, 3):
            for own in (BFLOAT16, FOUR_BIT):
                shifted = with_lists_only_from(own, shift)
                for other in (FLOAT32, own):
                    with self.subTest(shift):
                        self.check(
                            other, shifted, "lists_shifted",
                            says="The lists of B belong", back="The lists of A belong",
                        )  # fmt: skip
                # The other file has no list to compare with, but the tokens belie their own.
                comparison = compared(without_lists(FLOAT32), shifted)
                self.assertEqual(faults_of(comparison), ["sampled_column"], shift)
                self.assertIn("In B", verdict(comparison))

    def test_sampled_log_probs_of_other_positions(self):
        for shift in (-1, 1, 2):
            with self.subTest(shift):
                shifted = with_sampled_from(FOUR_BIT, shift)
                # Which file it is, lists tell; without them neither is named.
                self.check(
                    FLOAT32, shifted, "sampled_shifted",
                    says="sampled tokens of B belong", back="sampled tokens of A belong",
                )  # fmt: skip
                self.check(FLOAT32, without_lists(shifted), "sampled_shifted")
                both = compared(without_lists(shifted), without_lists(FLOAT32))
                self.assertIn("sampled tokens of A or B belong", verdict(both))

    def test_one_file_starts_later(self):
        for count in (1, 2, 3):
            later = without_first(FOUR_BIT, count)
            self.check(FLOAT32, later, "tokens_shifted", says="A has ", back="B has ")
            self.assertEqual(faults(without_first(BFLOAT16, count), FOUR_BIT), ["tokens_shifted"])
            self.assertEqual(faults(without_lists(FLOAT32), without_lists(later)), ["tokens_shifted"])

    def test_the_wrong_column(self):
        def most_probable(position):
            sampled = dataclasses.replace(position.sampled, log_prob=position.top[0].log_prob)
            return dataclasses.replace(position, sampled=sampled)

        wrong = changed(FOUR_BIT, most_probable)
        self.check(FLOAT32, wrong, "sampled_column", says="In B", back="In A")
        self.assertIn("the wrong column", verdict(compared(FLOAT32, wrong)))

    def test_other_ids(self):
        # The texts are the same, but an id of one file is another token in the other.
        for number in (lambda token: token + 3, lambda token: (token * 7919 + 13) % 50021):
            comparison = compared(FLOAT32, renumbered(FOUR_BIT, number))
            self.assertIn("token_numbers", faults_of(comparison))
            self.assertTrue(all("token_" in fault for fault in faults_of(comparison)))
        offset = compared(FLOAT32, renumbered(FOUR_BIT, lambda token: token + 3))
        self.assertIn("those of B are +3", named(offset, "token_numbers").finding)

    def test_other_texts(self):
        # Ids agree, but texts do not: as if B had been decoded by another tokenizer.
        other = each_token(FOUR_BIT, lambda token: dataclasses.replace(token, text=token.text + "x"))
        self.check(FLOAT32, other, "token_texts")

    def test_another_segmentation(self):
        self.check(FOUR_BIT, merged(FLOAT32), "segmentation")
        self.check(without_ids(FOUR_BIT), without_ids(merged(FLOAT32)), "segmentation")

    def test_other_weights(self):
        noise = differences(FLOAT32, FOUR_BIT)
        for seed in range(5):
            self.assertEqual(faults(FLOAT32, with_noise(BFLOAT16, noise, 6, seed)), ["weights"], seed)


class NoiseTest(unittest.TestCase):
    def test_equal_recordings_have_no_fault(self):
        for path in ENGINES + ("4_bit_own_text", "float32_temperature_0.7", "float32_top_p_0.9"):
            for change in (lambda file: file, without_ids, without_lists):
                comparison = compared(change(recorded(path)), change(recorded(path)))
                self.assertEqual(faults_of(comparison), [], path)
                self.assertIn("The log-probs are equal", verdict(comparison))

    def test_rounding_to_float16_is_no_fault(self):
        for name in ENGINES:
            rounded = each_token(
                recorded(name), lambda token: dataclasses.replace(token, log_prob=float(np.float16(token.log_prob)))
            )
            self.assertEqual(faults(recorded(name), rounded), [], name)

    def test_engines_that_differ_numerically_have_no_fault(self):
        for a in ENGINES:
            for b in ENGINES:
                for change in (lambda file: file, without_ids, without_lists):
                    self.assertEqual(faults(change(recorded(a)), change(recorded(b))), [], (a, b))
                for k in (1, 2, 5):
                    self.assertEqual(faults(shortened(recorded(a), k), recorded(b)), [], (a, b, k))
                    self.assertEqual(faults(recorded(a), shortened(recorded(b), k)), [], (a, b, k))
                    self.assertEqual(faults(shortened(recorded(a), k), shortened(recorded(b), k)), [], (a, b, k))
            self.assertEqual(faults(recorded(a), recorded("4_bit_own_text")), [], a)
            self.assertEqual(faults(recorded("4_bit_own_text"), recorded(a)), [], a)

    def test_one_sequence_alone_has_no_fault(self):
        for number in range(len(FLOAT32)):
            for name in ("bfloat16", "4_bit", "4_bit_own_text"):
                self.assertEqual(faults([FLOAT32[number]], [recorded(name)[number]]), [], (name, number))

    def test_resampled_noise_is_no_fault(self):
        noise = differences(FLOAT32, FOUR_BIT)
        # The last one is half as large again as that of 4-bit weights.
        for scale in (0.001, 0.1, 0.5, 1.0, 1.5):
            for seed in range(10):
                noisy = with_noise(FLOAT32, noise, scale, seed)
                self.assertEqual(faults(FLOAT32, noisy), [], (scale, seed))
                self.assertEqual(faults(noisy, FOUR_BIT), [], (scale, seed))

    def test_the_size_of_the_noise_is_named(self):
        small = with_noise(FLOAT32, differences(FLOAT32, FOUR_BIT), 1e-4, 1)
        for b, size in ((BFLOAT16, "bfloat16"), (FOUR_BIT, "4-bit weights"), (small, "float32")):
            self.assertIn(f"the size that comes from {size}", verdict(compared(FLOAT32, b)))

    def test_recordings_of_larger_models(self):
        folder = os.environ.get("SIS_RECORDED_DATA")
        if folder is None:
            self.skipTest("SIS_RECORDED_DATA is not set: no recordings")
        for model in ("gemma-3-270m", "qwen-3-1-7b"):
            cpu, cuda = (as_positions(read_file(f"{folder}/{model}_{device}.json")) for device in ("cpu", "cuda"))
            without_texts = each_token(cpu, lambda token: dataclasses.replace(token, id=token.id + 5, text=None))
            for a, b, expected in (
                (cpu, cuda, []),
                (cuda, cpu, []),
                (cpu, at_temperature(cuda, 0.8), ["temperature"]),
                (at_temperature(cpu, 1.3), cuda, ["temperature"]),
                (with_lists_from(cpu, 1), cuda, ["lists_shifted"]),
                (cpu, with_lists_from(cuda, -1), ["lists_shifted"]),
                (cpu, with_lists_only_from(cuda, -1), ["lists_shifted"]),
                (cpu, without_first(cpu, 1), ["tokens_shifted"]),
                (cpu, without_texts, ["token_numbers"]),
            ):
                self.assertEqual(faults(a, b), expected, model)


if __name__ == "__main__":
    unittest.main()
