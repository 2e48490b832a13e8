"""Every form x algorithm x encoding over gRPC, against the formulas in float64."""

import unittest
import unittest.mock

import numpy as np

import sis
from tests.integration.evaluated_batch import FORMS, LENGTHS, OUTPUTS, SEED, TOP_K, EvaluatedBatchTest, Values
from tests.reference import algorithms, numerics

ALGORITHMS = {name: getattr(sis, name.title().replace("_", "")) for name in algorithms.RULES}
# Their defaults hardly ever act on 200 tokens.
NEVER_BY_DEFAULT = ("gspo", "clip_cov")


class FormulasTest(EvaluatedBatchTest):
    def decide(self, records: sis.TopKRecords, values: Values, draw: int) -> numerics.Evaluation:
        """By numpy, sequence after sequence; float outputs are NaN where lost or masked."""
        parts, first = [], 0
        for name, length in LENGTHS.items():
            here = slice(first, first + length)
            positions = np.arange(length, dtype=np.uint32)
            words = numerics.uniforms(numerics.sequence_key(SEED, 0, name), positions, draw)
            recorded = numerics.Records(
                positions,
                records.sampled_ids[here],
                records.sampled_log_probs[here],
                records.ids[here],
                records.log_probs[here],
            )
            scored = (self.mask & ~self.lost)[here]
            parts.append(numerics.decide_reduced(recorded, values.reduced(recorded, here), TOP_K, words, scored))
            first += length
        return numerics.Evaluation(*(np.concatenate(columns) for columns in zip(*parts)))

    def total_variations(self, records: sis.TopKRecords, values: Values, reference: np.ndarray) -> np.ndarray:
        inside = numerics.rank(records.sampled_ids, records.ids, records.log_probs) < TOP_K
        outside = np.where(inside, -np.inf, reference.astype(np.float64))
        distance = algorithms.top_k_total_variation(
            records.log_probs.astype(np.float64), values.log_probs.astype(np.float64), outside, values.sampled
        )
        binary = np.abs(np.exp(values.sampled.astype(np.float64)) - np.exp(reference.astype(np.float64)))
        return np.where(self.lost, binary, distance)

    def check(self, run, records, values, encoding, weight, three_policies):
        draw = 17
        decided = self.decide(records, values, draw)
        scored = self.mask & ~self.lost
        accepted = (decided.decisions == sis.Decision.ACCEPTED) & scored
        reference = np.where(scored, records.sampled_log_probs, self.own)
        log_w = np.where(self.mask, values.sampled - reference, 0).astype(np.float64)
        a = decided.acceptance_probabilities.astype(np.float64)
        log_modified = np.where(accepted, 0, log_w)
        if weight == "expected":
            log_modified = np.where(scored, np.log(a + (1 - a) * np.exp(log_w)), log_w)
        d_sis = np.abs(log_modified[scored]).sum()
        certified = accepted if weight == "sampled" else np.zeros_like(accepted)
        batch = algorithms.Batch(
            keys=[numerics.sequence_key(SEED, 0, name) for name in LENGTHS],
            first_positions=[0] * len(LENGTHS),
            counts=list(LENGTHS.values()),
            masked=~self.mask,
            accepted=certified,
            log_ratios=log_modified,
            log_corrections=None,
            current_log_probs=values.sampled.astype(np.float64),
            reference_log_probs=reference.astype(np.float64),
            total_variations=self.total_variations(records, values, reference),
            log_importance_ratios=log_w,
            acceptance_probabilities=np.where(scored, a, 0),
            advantages=self.advantages.astype(np.float64),
            draw=draw,
        )
        if three_policies:
            ratio = (self.current_of_three - values.sampled).astype(np.float64)
            batch = algorithms.Batch(
                **{
                    **vars(batch),
                    "log_ratios": ratio,
                    "log_corrections": log_modified,
                    "log_importance_ratios": (self.current_of_three - reference).astype(np.float64),
                    "current_log_probs": self.current_of_three.astype(np.float64),
                    "reference_log_probs": values.sampled.astype(np.float64),
                }
            )
        for name, make in ALGORITHMS.items():
            rule = algorithms.RULES[name]
            if rule.every_slot and (values.form == "reduced" or three_policies):
                continue
            defaults = weight == "sampled" and name not in NEVER_BY_DEFAULT
            parameters = rule.defaults if defaults else rule.others
            algorithm = make() if defaults else make(*parameters)
            evaluation = values.evaluate(
                self.client,
                run,
                records,
                draw=draw,
                outputs=OUTPUTS,
                options=sis.EvaluateOptions(
                    weight=weight,
                    mask=self.mask,
                    own_log_probs=self.own,
                    decoupled_log_probs=self.current_of_three if three_policies else None,
                    algorithm=algorithm,
                    advantages=self.advantages,
                    sampled_ids=self.tokens,
                ),
            )
            what = f"{encoding} {values.form} {name} {weight} {three_policies}"
            decisions = np.where(self.mask, decided.decisions, sis.Decision.MASKED)
            np.testing.assert_array_equal(evaluation.decisions, decisions, what)
            np.testing.assert_array_equal(evaluation.acceptance_probabilities, decided.acceptance_probabilities, what)
            np.testing.assert_allclose(evaluation.log_ratios, log_modified, rtol=2e-6, atol=3e-7, err_msg=what)
            np.testing.assert_allclose(evaluation.ratios, np.exp(log_modified), rtol=1e-6, err_msg=what)
            surrogates, coefficients = algorithms.apply(name, parameters, batch)
            np.testing.assert_allclose(evaluation.surrogates, surrogates, rtol=3e-6, err_msg=what)
            np.testing.assert_allclose(evaluation.coefficients, coefficients, rtol=3e-6, err_msg=what)
            np.testing.assert_allclose(evaluation.totals.d_sis, d_sis, atol=1e-4, err_msg=what)
            self.assertEqual(evaluation.totals.masked, (~self.mask).sum())
            self.assertEqual(evaluation.totals.missing, self.lost.sum())
            self.assertEqual(evaluation.totals.scored, scored.sum())


class AlgorithmsTest(FormulasTest):
    def test_every_form_algorithm_and_encoding(self):
        for encoding in ("float32", "fixed16"):
            run, records = self.recorded(f"all-{encoding}", encoding)
            for form in FORMS:
                values = Values(records, self.logits, form, self.tokens)
                for weight in ("sampled", "expected"):
                    for three_policies in (False, True):
                        self.check(run, records, values, encoding, weight, three_policies)

    def test_parts_of_a_sequence_add_up(self):
        run, records = self.recorded("parts")
        values = Values(records, self.logits, "gathered")
        rows = np.cumsum([0, *LENGTHS.values()])[1] + np.arange(LENGTHS["b"])

        def evaluate(first, last, sums=None):
            here = rows[first:last]
            return self.client.evaluate(
                run,
                [sis.Slice("b", first, last - first)],
                draw=3,
                log_probs=values.log_probs[here],
                sampled_log_probs=values.sampled[here],
                outputs=("surrogates", "coefficients"),
                options=sis.EvaluateOptions(
                    algorithm=sis.Gspo(0.5, 0.5), advantages=self.advantages[here], log_ratio_sums=sums
                ),
            )

        whole = evaluate(0, 70)
        parts = [evaluate(0, 25), evaluate(25, 70)]
        total = sis.LogRatioSum(*(sum(column) for column in zip(*(part.log_ratio_sums[0] for part in parts))))
        self.assertEqual(whole.log_ratio_sums, (total,))
        self.assertNotEqual(parts[0].surrogates[0], whole.surrogates[0])
        together = [evaluate(0, 25, [total]), evaluate(25, 70, [total])]
        for output in ("surrogates", "coefficients"):
            joined = np.concatenate([getattr(part, output) for part in together])
            self.assertEqual(joined.tobytes(), getattr(whole, output).tobytes())

    def test_bad_options_are_named(self):
        run, records = self.recorded("bad")
        values = Values(records, self.logits, "gathered")
        grpo = {"mask": self.mask & ~self.lost, "algorithm": sis.Grpo(), "advantages": self.advantages}
        infinite = self.current_of_three.copy()
        infinite[3] = np.inf
        for options, outputs, message in (
            ({**grpo, "algorithm": sis.Grpo(1.5)}, ("surrogates",), r"grpo.epsilon: 1.5, must be in \[0, 1\]"),
            ({**grpo, "algorithm": None}, ("surrogates",), "algorithm: unset"),
            (grpo, ("ratios",), "algorithm: set, but neither"),
            ({**grpo, "advantages": None}, ("coefficients",), "advantages: unset"),
            ({**grpo, "algorithm": sis.ClipCov(), "advantages": None}, ("surrogates",), "advantages: unset"),
            ({**grpo, "decoupled_log_probs": infinite}, ("surrogates",), "decoupled.current_log_probs: element 3: inf"),
            ({"own_log_probs": self.own * np.inf}, ("ratios",), "own_log_probs: position 30: -inf"),
            ({"own_log_probs": np.full_like(self.own, -9999)}, ("ratios",), "own_log_probs: position 30: -9999"),
            ({**grpo, "log_ratio_sums": [sis.LogRatioSum(2**62, 5)] * 3}, ("surrogates",), "sequence_log_ratio_sum"),
            (
                {**grpo, "algorithm": sis.DppoTopK(), "decoupled_log_probs": self.current_of_three},
                ("surrogates",),
                "dppo_top_k: not with three policies",
            ),
        ):
            with self.subTest(message=message):
                with self.assertRaisesRegex(sis.InvalidArgument, message):
                    values.evaluate(
                        self.client, run, records, draw=1, outputs=outputs, options=sis.EvaluateOptions(**options)
                    )
        with self.assertRaisesRegex(sis.InvalidArgument, "dppo_top_k: needs log-probs at every slot"):
            Values(records, self.logits, "reduced").evaluate(
                self.client,
                run,
                records,
                draw=1,
                outputs=("surrogates",),
                options=sis.EvaluateOptions(**{**grpo, "algorithm": sis.DppoTopK()}),
            )
        with self.assertRaises(sis.NotFound):
            self.client.list_steps(run, draws=[1])


if __name__ == "__main__":
    unittest.main()
