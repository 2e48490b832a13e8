"""Every form x algorithm x encoding over gRPC, against the formulas in float64; and what the other options promise."""

import unittest
from typing import Optional

import numpy as np
import torch

import sis
from tests.integration.live_server import LiveServerTest
from tests.reference import algorithms, authors_code, dense_numerics, numerics

SEED = 12345
TOP_K, VOCABULARY = 8, 60
# Of the current policy's own sets.
CURRENT_TOP_K = 12
OUTPUTS = ("decisions", "ratios", "log_ratios", "acceptance_probabilities", "surrogates", "coefficients")
LENGTHS = {"a": 90, "b": 70, "c": 50}
# Of sequence a: tool output, which has no record, and positions that got lost.
TOOL, LOST = slice(30, 40), slice(40, 50)

FORMS = ("gathered", "half", "logits", "bfloat16_logits", "reduced", "top_k", "dense", "bfloat16_dense")

ALGORITHMS = {
    "importance_sampling": (sis.ImportanceSampling, ()),
    "no_correction": (sis.NoCorrection, ()),
    "grpo": (sis.Grpo, ("epsilon",)),
    "dapo": (sis.Dapo, ("epsilon_low", "epsilon_high")),
    "gspo": (sis.Gspo, ("epsilon_low", "epsilon_high")),
    "cispo": (sis.Cispo, ("epsilon_high",)),
    "dppo_top_k": (sis.DppoTopK, ("threshold",)),
    "dppo_binary": (sis.DppoBinary, ("threshold",)),
    "clip_cov": (sis.ClipCov, ("lower", "upper", "fraction")),
    "tis": (sis.Tis, ("truncation", "epsilon_low", "epsilon_high")),
    "ice_pop": (sis.IcePop, ("alpha", "beta", "epsilon_low", "epsilon_high")),
}
# Other than the defaults where those hardly ever act on 200 tokens.
PARAMETERS = {"gspo": (0.05, 0.1), "clip_cov": (0.5, 4.0, 0.05)}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


class Values:
    """The tested policy's values at all positions, and what evaluate makes of them."""

    def __init__(self, records: sis.TopKRecords, logits: np.ndarray, form: str, tokens: Optional[np.ndarray] = None):
        """tokens: the sampled ones, where that of a lost position is to be known."""
        rows = np.arange(len(records))
        slots, sampled = np.maximum(records.ids, 0), np.maximum(records.sampled_ids, 0)
        if tokens is not None:
            sampled = tokens
        self.tokens = tokens
        if form in ("bfloat16_logits", "bfloat16_dense"):
            logits = torch.tensor(logits).bfloat16().float().numpy()
        self.form = form
        self.whole = logits
        self.log_sum_exps = np.logaddexp.reduce(logits.astype(np.float64), axis=1)
        if form in ("dense", "bfloat16_dense"):
            # The service's own, which is the same to 2e-6.
            exact = self.log_sum_exps
            self.log_sum_exps = np.array([dense_numerics.log_sum_exp(row) for row in logits])
            np.testing.assert_allclose(self.log_sum_exps, exact, rtol=0, atol=36 * 2.0**-24)
        self.logits = np.take_along_axis(logits, slots, axis=1).astype(np.float32)
        self.sampled_logits = logits[rows, sampled].astype(np.float32)
        exact = (self.logits.astype(np.float64) - self.log_sum_exps[:, None]).astype(np.float32)
        self.sampled = (self.sampled_logits.astype(np.float64) - self.log_sum_exps).astype(np.float32)
        self.sent = exact
        self.log_probs = exact
        if form == "half":
            half = exact.astype(np.float16)
            half = np.where(half < exact, np.nextafter(half, np.float16(np.inf)), half)
            self.log_probs = half.astype(np.float32)
        every = (logits.astype(np.float64) - self.log_sum_exps[:, None]).astype(np.float32)
        ids = np.argsort(-every, axis=1)[:, :CURRENT_TOP_K].astype(np.int32)
        self.sets = numerics.TopKSets(self.sampled, ids, np.take_along_axis(every, ids, axis=1))

    def reduced(self, records: numerics.Records, here: slice) -> numerics.Reduced:
        """What numpy makes of the values at the positions `here`, which `records` are of."""
        if self.form == "top_k":
            sets = numerics.TopKSets(*(array[here] for array in self.sets))
            return numerics.reduce_top_k_sets(records, sets, TOP_K)
        gathered = numerics.Gathered(self.sampled[here], self.log_probs[here])
        return numerics.reduce_gathered(records, gathered, TOP_K)

    def evaluate(self, client: sis.Client, run: sis.Run, records: sis.TopKRecords, **keywords) -> sis.Evaluation:
        if self.form == "reduced":
            envelopes, masses = sis.reduce(records, self.sent)
            return client.evaluate_reduced(
                run, records, sampled_log_probs=self.sampled, log_envelopes=envelopes, covered_masses=masses, **keywords
            )
        if self.form in ("dense", "bfloat16_dense"):
            logits = torch.tensor(self.whole)
            if self.form == "bfloat16_dense":
                logits = logits.bfloat16()
            return client.evaluate_dense(run, records, logits=logits, sampled_ids=self.tokens, **keywords)
        if self.form == "top_k":
            return client.evaluate_top_k(run, records, **self.sets._asdict(), **keywords)
        if self.form in ("logits", "bfloat16_logits"):
            logits, sampled = self.logits, self.sampled_logits
            if self.form == "bfloat16_logits":
                logits, sampled = torch.tensor(logits).bfloat16(), torch.tensor(sampled).bfloat16()
            return client.evaluate_logits(
                run, records, logits=logits, sampled_logits=sampled, log_sum_exps=self.log_sum_exps, **keywords
            )
        return client.evaluate(
            run,
            records,
            log_probs=self.sent,
            sampled_log_probs=self.sampled,
            half_precision=self.form == "half",
            **keywords,
        )


class AlgorithmsTest(LiveServerTest):
    def setUp(self):
        rng = np.random.default_rng(9)
        count = sum(LENGTHS.values())
        self.rng = rng
        self.behaviour_logits = rng.normal(0, 2, (count, VOCABULARY))
        self.logits = self.behaviour_logits + rng.normal(0, 0.5, (count, VOCABULARY))
        self.logits = self.logits.astype(np.float32)
        current = self.logits + rng.normal(0, 0.3, self.logits.shape)
        behaviour = log_softmax(self.behaviour_logits)
        self.tokens = (behaviour + rng.gumbel(size=behaviour.shape)).argmax(axis=1)
        rows = np.arange(count)
        self.behaviour = behaviour.astype(np.float32)
        self.current_of_three = log_softmax(current)[rows, self.tokens].astype(np.float32)
        self.own = (self.behaviour[rows, self.tokens] + rng.normal(0, 0.1, count)).astype(np.float32)
        self.own = np.minimum(self.own, 0)
        self.advantages = rng.normal(0, 1.5, count).astype(np.float32)
        self.mask = np.ones(count, bool)
        self.mask[TOOL] = False
        self.lost = np.zeros(count, bool)
        self.lost[LOST] = True

    def recorded(self, run_id: str, encoding: str = "float32") -> tuple[sis.Run, sis.TopKRecords]:
        run = self.client.create_run(
            run_id, seed=SEED, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding=encoding
        )
        rows = np.arange(len(self.tokens))
        ids = np.broadcast_to(np.arange(VOCABULARY), self.behaviour.shape)
        record = sis.canonical(ids, self.behaviour, self.tokens, self.behaviour[rows, self.tokens], TOP_K)
        first = 0
        with self.client.append(run, sampling=sis.Sampling("processed", temperature=1.0)) as stream:
            for name, length in LENGTHS.items():
                for start, end in ((0, TOOL.start), (LOST.stop, length)) if name == "a" else ((0, length),):
                    part = {key: array[first + start : first + end] for key, array in record._asdict().items()}
                    stream.block(name, first_position=start, policy_version=0, **part)
                first += length
        return run, self.client.fetch_top_k(run, list(LENGTHS))

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
        batch = algorithms.Batch(
            keys=[numerics.sequence_key(SEED, 0, name) for name in LENGTHS],
            first_positions=[0] * len(LENGTHS),
            counts=list(LENGTHS.values()),
            masked=~self.mask,
            accepted=accepted if weight == "sampled" else np.zeros_like(accepted),
            log_ratios=log_modified,
            log_corrections=None,
            current_log_probs=values.sampled.astype(np.float64),
            reference_log_probs=reference.astype(np.float64),
            total_variations=self.total_variations(records, values, reference),
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
                    "current_log_probs": self.current_of_three.astype(np.float64),
                    "reference_log_probs": values.sampled.astype(np.float64),
                }
            )
        for name, (make, fields) in ALGORITHMS.items():
            if name == "dppo_top_k" and (values.form in ("reduced", "top_k") or three_policies):
                continue
            parameters = PARAMETERS.get(name, algorithms.DEFAULTS[name])
            algorithm = make(**dict(zip(fields, PARAMETERS[name]))) if name in PARAMETERS else make()
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
            d_sis = np.abs(log_modified[scored]).sum()
            np.testing.assert_allclose(evaluation.totals.d_sis, d_sis, atol=1e-4, err_msg=what)
            self.assertEqual(evaluation.totals.masked, (~self.mask).sum())
            self.assertEqual(evaluation.totals.missing, self.lost.sum())
            self.assertEqual(evaluation.totals.scored, scored.sum())

    def test_every_form_algorithm_and_encoding(self):
        for encoding in ("float32", "float16", "fixed12"):
            run, records = self.recorded(f"all-{encoding}", encoding)
            for form in FORMS:
                values = Values(records, self.logits, form, self.tokens)
                for weight in ("sampled", "expected"):
                    for three_policies in (False, True):
                        self.check(run, records, values, encoding, weight, three_policies)

    def test_a_mask_leaves_everything_else_as_it_was(self):
        run, records = self.recorded("mask")
        values = Values(records, self.logits, "gathered")
        plain = values.evaluate(self.client, run, records, draw=1, outputs=("decisions",))
        for share in (0.5, 0.9, 0.1):
            mask = self.rng.random(len(records)) < share
            values.sent = np.where(mask[:, None], values.log_probs, np.float32(np.nan))
            masked = values.evaluate(
                self.client, run, records, draw=1, outputs=OUTPUTS[:4],
                options=sis.EvaluateOptions(mask=mask, own_log_probs=self.own),
            )
            np.testing.assert_array_equal(masked.decisions[mask], plain.decisions[mask])
            self.assertTrue((masked.decisions[~mask] == sis.Decision.MASKED).all())
            self.assertTrue((masked.ratios[~mask] == 1).all() and (masked.log_ratios[~mask] == 0).all())
            self.assertTrue((masked.acceptance_probabilities[~mask] == 0).all())
            self.assertFalse(masked.accepted[~mask].any())
            counts = np.bincount(masked.decisions, minlength=6)
            totals = masked.totals
            self.assertEqual(
                [totals.accepted, totals.rejected, totals.outside_top_k, totals.missing, totals.masked],
                counts[1:].tolist(),
            )

    def test_a_step_counts_what_was_weighed(self):
        run, records = self.recorded("step")
        values = Values(records, self.logits, "gathered")
        rows = np.cumsum([0, *LENGTHS.values()])[1] + np.arange(LENGTHS["b"])

        def evaluate(first, last):
            here = rows[first:last]
            mask = np.arange(first, last) % 7 != 0
            return self.client.evaluate(
                run,
                [sis.Slice("b", first, last - first)],
                draw=9,
                log_probs=values.log_probs[here],
                sampled_log_probs=values.sampled[here],
                outputs=("log_ratios",),
                options=sis.EvaluateOptions(weight="expected", mask=mask),
            )

        # The second call counts only what the first did not have.
        self.assertEqual(evaluate(20, 40).newly_counted, 17)
        whole = evaluate(0, 70)
        self.assertEqual(whole.newly_counted, 60 - 17)
        step = self.client.get_step(run, 9).totals
        self.assertEqual(step, whole.totals)
        self.assertEqual(step.masked, 10)
        self.assertLess(step.d_sis, step.d)
        self.assertAlmostEqual(step.d_sis, np.abs(whole.log_ratios.astype(np.float64)).sum(), delta=1e-6)

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

    def test_a_misaligned_batch_is_refused(self):
        run, records = self.recorded("misaligned")
        values = Values(records, self.logits, "gathered")

        def evaluate(tokens, mask=None):
            options = sis.EvaluateOptions(sampled_ids=tokens, mask=mask)
            return values.evaluate(self.client, run, records, draw=1, options=options)

        evaluate(self.tokens, self.mask & ~self.lost)
        for shift in (1, -1):
            with self.assertRaisesRegex(sis.FailedPrecondition, "sampled_ids_crc32c.*'a'|sampled_ids_crc32c.*a"):
                evaluate(np.roll(self.tokens, shift), self.mask & ~self.lost)
        one_wrong = self.tokens.copy()
        one_wrong[-1] ^= 1
        with self.assertRaisesRegex(sis.FailedPrecondition, "tokens recorded of .*c"):
            evaluate(one_wrong, self.mask & ~self.lost)
        # Where a position is missing there is nothing to compare with.
        one_wrong = self.tokens.copy()
        one_wrong[5] ^= 1
        evaluate(one_wrong)
        # A masked one is not compared, though there is a record.
        mask = self.mask & ~self.lost
        with self.assertRaisesRegex(sis.FailedPrecondition, "tokens recorded of .*a"):
            evaluate(one_wrong, mask)
        mask[5] = False
        evaluate(one_wrong, mask)

    def test_ratios_of_lost_positions_need_the_trainers_own(self):
        run, records = self.recorded("lost")
        values = Values(records, self.logits, "gathered")
        with self.assertRaisesRegex(sis.FailedPrecondition, "own_log_probs.*position 30 is missing"):
            values.evaluate(self.client, run, records, draw=1, outputs=("ratios",))
        with self.assertRaisesRegex(sis.FailedPrecondition, "position 40 is missing"):
            values.evaluate(
                self.client, run, records, draw=1, outputs=("ratios",), options=sis.EvaluateOptions(mask=self.mask)
            )
        own = sis.EvaluateOptions(mask=self.mask, own_log_probs=self.own)
        ratios = values.evaluate(self.client, run, records, draw=1, outputs=("ratios",), options=own).ratios
        expected = numerics.exp32(numerics.flush(values.sampled - self.own))
        self.assertEqual(ratios[LOST].tobytes(), expected[LOST].tobytes())
        values.evaluate(self.client, run, records, draw=1)

    def test_authors_code(self):
        run, records = self.recorded("authors")
        for form in ("gathered", "reduced", "dense"):
            values = Values(records, self.logits, form)
            evaluation = values.evaluate(
                self.client,
                run,
                records,
                draw=5,
                outputs=("decisions", "acceptance_probabilities"),
                options=sis.EvaluateOptions(
                    mask=self.mask & ~self.lost, authors_code=sis.AuthorsCode(epsilon_high=0.28)
                ),
            )
            scored = self.mask & ~self.lost
            words = np.concatenate(
                [
                    numerics.uniforms(numerics.sequence_key(SEED, 0, name), np.arange(n, dtype=np.uint32), 5)
                    for name, n in LENGTHS.items()
                ]
            )
            arrays = (records.sampled_log_probs, values.sampled, records.log_probs, values.log_probs, words)
            want = authors_code.decide(*(array[scored] for array in arrays))
            np.testing.assert_array_equal(evaluation.accepted[scored], want.accepted)
            np.testing.assert_array_equal(evaluation.acceptance_probabilities[scored], want.acceptance_probabilities)
            means = authors_code.mean_deviation(want, 0.2, 0.28)
            np.testing.assert_allclose((evaluation.totals.mean_d, evaluation.totals.mean_d_sis), means, rtol=1e-6)
            outside = numerics.rank(records.sampled_ids, records.ids, records.log_probs) == numerics.NO_RANK
            self.assertTrue(evaluation.accepted[outside & scored].any())

    def test_dense_logits_have_everything_that_gathered_ones_have(self):
        run, records = self.recorded("dense")
        for form in ("dense", "bfloat16_dense"):
            values = Values(records, self.logits, form)
            for top_k in (0, 3):
                keywords = {
                    "draw": 4, "top_k": top_k, "outputs": OUTPUTS[:1], "prefix_curve": (1, 3), "total_variation": True,
                }
                dense = values.evaluate(self.client, run, records, **keywords)
                gathered = self.client.evaluate(
                    run, records, log_probs=values.log_probs, sampled_log_probs=values.sampled, **keywords
                )
                self.assertEqual(dense.decisions.tobytes(), gathered.decisions.tobytes())
                self.assertEqual(dense.totals, gathered.totals)
                self.assertGreater(dense.totals.total_variation, 0)
                self.assertEqual(dense.prefix_curve, gathered.prefix_curve)

    def test_dense_logits_of_rows_that_count_for_nothing_may_be_anything(self):
        run, records = self.recorded("dense-ignored")
        plain = Values(records, self.logits, "dense").evaluate(self.client, run, records, draw=4)
        spoilt = Values(records, np.where((self.mask & ~self.lost)[:, None], self.logits, 0), "dense")
        spoilt.whole = np.where((self.mask & ~self.lost)[:, None], self.logits, np.float32(np.nan))
        options = sis.EvaluateOptions(mask=self.mask)
        ours = spoilt.evaluate(self.client, run, records, draw=4, options=options)
        np.testing.assert_array_equal(ours.accepted, plain.accepted & self.mask)
        self.assertEqual(ours.totals.accepted, plain.totals.accepted)

    def test_bad_dense_logits_are_named(self):
        run, records = self.recorded("dense-bad")
        other = self.tokens.copy()
        other[7] = (other[7] + 1) % VOCABULARY
        far = self.tokens.copy()
        far[41] = VOCABULARY
        own = {"own_log_probs": self.own, "mask": self.mask}

        def bad(row, column, value):
            logits = self.logits.copy()
            logits[row, column] = value
            return logits

        sampled = np.zeros_like(self.logits)
        sampled[12, self.tokens[12]] = -np.inf
        three = {"decoupled_log_probs": self.current_of_three, "mask": self.mask & ~self.lost}
        for error, message, logits, tokens, options in (
            (sis.InvalidArgument, "a.*dense.logits at position 5, vocabulary id 59: nan", bad(5, 59, np.nan), None, {}),
            (sis.InvalidArgument, "dense.logits at position 6, vocabulary id 0: inf", bad(6, 0, np.inf), None, {}),
            (sis.InvalidArgument, "dense.logits at position 8: all are -inf", bad(8, slice(None), -np.inf), None, {}),
            (sis.FailedPrecondition, "a.*dense.sampled_ids at position 7", self.logits, other, {}),
            (sis.InvalidArgument, "dense.sampled_ids: unset, but own_log_probs", self.logits, None, own),
            (sis.InvalidArgument, "dense.sampled_ids at position 41: 60 is not", self.logits, far, own),
            (sis.InvalidArgument, "position 45, vocabulary id 1: nan", bad(45, 1, np.nan), self.tokens, own),
            (sis.InvalidArgument, "position 12: log p of the sampled token is -inf", sampled, None, three),
        ):
            with self.subTest(message=message):
                with self.assertRaisesRegex(error, message):
                    self.client.evaluate_dense(
                        run,
                        records,
                        draw=1,
                        logits=logits,
                        sampled_ids=tokens,
                        options=sis.EvaluateOptions(**options),
                    )
        with self.assertRaises(sis.NotFound):
            self.client.get_step(run, 1)

    def test_bad_options_are_named(self):
        run, records = self.recorded("bad")
        values = Values(records, self.logits, "gathered")
        bad = self.advantages.copy()
        bad[7] = np.nan
        grpo = {"mask": self.mask & ~self.lost, "algorithm": sis.Grpo(), "advantages": self.advantages}
        infinite = self.current_of_three.copy()
        infinite[3] = np.inf
        for options, outputs, message in (
            ({**grpo, "algorithm": sis.Grpo(1.5)}, ("surrogates",), r"grpo.epsilon: 1.5, must be in \[0, 1\]"),
            ({**grpo, "algorithm": None}, ("surrogates",), "algorithm: unset"),
            (grpo, ("ratios",), "algorithm: set, but neither"),
            ({**grpo, "advantages": None}, ("coefficients",), "advantages: unset"),
            ({**grpo, "advantages": bad}, ("coefficients",), "advantages: element 7: nan"),
            ({**grpo, "algorithm": sis.ClipCov(), "advantages": None}, ("surrogates",), "advantages: unset"),
            ({**grpo, "decoupled_log_probs": infinite}, ("surrogates",), "decoupled.current_log_probs: element 3: inf"),
            ({"own_log_probs": self.own * np.inf}, ("ratios",), "own_log_probs: position 30: -inf"),
            ({"weight": "expected", "authors_code": sis.AuthorsCode()}, (), "authors_code: goes with weight SAMPLED"),
            ({"authors_code": sis.AuthorsCode(1.0)}, (), "authors_code.epsilon_low: 1, must be"),
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
        for form in ("reduced", "top_k"):
            with self.assertRaisesRegex(sis.InvalidArgument, "dppo_top_k: needs log-probs at every slot"):
                Values(records, self.logits, form).evaluate(
                    self.client,
                    run,
                    records,
                    draw=1,
                    outputs=("surrogates",),
                    options=sis.EvaluateOptions(**{**grpo, "algorithm": sis.DppoTopK()}),
                )
        with self.assertRaises(sis.NotFound):
            self.client.get_step(run, 1)


if __name__ == "__main__":
    unittest.main()
