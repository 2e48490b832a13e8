"""The decisions of sis.diagnose.compare beside the same numbers in double precision, from the files alone."""

import json
import math
import random
import statistics
import unittest

from sis import diagnose

from tests.reference import numerics


def compare(a, b, k=0):
    """Each file is the content of a chat completion."""
    files = [
        diagnose.read_file(name, json.dumps({"logprobs": {"content": file}})) for name, file in (("a", a), ("b", b))
    ]
    return diagnose.compare(*files, top_k=k).as_json()


def expected(behaviour, current, k):
    """Returns the expected summary, in double precision. Neither file may list appended sampled tokens."""
    sequence_key = numerics.sequence_key(0, 0, "0")
    k = k or max(len(entry["top_logprobs"]) for entry in behaviour)
    decisions, log_ratios, log_envelopes, acceptances, residuals = [], [], [], [], []
    for t, (own, other) in enumerate(zip(behaviour, current)):
        y = own["id"]
        log_q, top = ({token["id"]: token["logprob"] for token in entry["top_logprobs"]} for entry in (own, other))
        known = other["logprob"] is not None and other["logprob"] > -9999
        log_p = {other["id"]: other["logprob"], **top} if known else top
        if y in log_p:
            members = sorted(log_q, key=lambda v: (-log_q[v], v))[:k]
            log_ratios.append(log_p[y] - own["logprob"])
            log_envelopes.append(max(log_p.get(v, min(top.values())) - log_q[v] for v in members))
            acceptances.append(math.exp(log_ratios[-1] - log_envelopes[-1]) if y in members else 0.0)
            residuals.append(max(0.0, 1 - sum(math.exp(log_p[v]) for v in members if v in log_p)))
            uniform = int(numerics.uniforms(sequence_key, numerics.np.array([t], numerics.np.uint32), 0)[0])
            accepted = "accepted" if uniform < acceptances[-1] * 2**32 else "rejected"
            decisions.append(accepted if y in members else "outside_top_k")
        else:
            decisions.append("unscored")
        if y != other["id"]:
            break
    scored = [decision for decision in decisions if decision != "unscored"]
    return {
        "top_k": k,
        "positions": len(decisions),
        **{name: decisions.count(name) for name in ("unscored", "accepted", "rejected", "outside_top_k")},
        "accept_rate": scored.count("accepted") / len(scored),
        "mean_acceptance_probability": statistics.fmean(acceptances),
        "mean_d": statistics.fmean(map(abs, log_ratios)),
        "mean_d_sis": statistics.fmean(abs(w) * (one != "accepted") for one, w in zip(scored, log_ratios)),
        "mean_k3": statistics.fmean(math.exp(w) - 1 - w for w in log_ratios),
        "mean_log_envelope": statistics.fmean(log_envelopes),
        "mean_residual_mass": statistics.fmean(residuals),
    }


def recordings(seed, positions=400, vocabulary=300, listed=(6, 5)):
    """Two engines' recordings of one text. Their logits differ by noise, and the second lists fewer tokens."""
    generator = random.Random(seed)
    contents = ([], [])
    for _ in range(positions):
        logits = [generator.gauss(0, 3) for _ in range(vocabulary)]
        noisy = [logit + generator.gauss(0, 0.3) for logit in logits]
        y = None
        for content, values, count in zip(contents, (logits, noisy), listed):
            norm = math.log(sum(map(math.exp, values)))
            # float32, as engines write them
            log_probs = [float(numerics.np.float32(value - norm)) for value in values]
            if y is None:
                y = generator.choices(range(vocabulary), [math.exp(value) for value in log_probs])[0]
            order = sorted(range(vocabulary), key=lambda v: -log_probs[v])[:count]
            top = [{"id": v, "logprob": log_probs[v]} for v in order]
            content.append({"id": y, "logprob": log_probs[y], "top_logprobs": top})
    return contents


class DecisionsTest(unittest.TestCase):
    def check(self, behaviour, current, k=0):
        actual, wanted = compare(behaviour, current, k)["decisions"], expected(behaviour, current, k)
        self.assertEqual(list(actual), list(wanted))
        for name, value in wanted.items():
            self.assertLessEqual(abs(actual[name] - value), 1e-5 * abs(value) * isinstance(value, float), name)
        return actual

    def test_agrees_with_double_precision(self):
        behaviour, current = recordings(seed=1)
        for k in (0, 6, 3, 1):
            with self.subTest(k=k):
                summary = self.check(behaviour, current, k)
                # One member alone is its own envelope, and never rejected.
                for name in ("accepted", "outside_top_k") + (("rejected",) if k != 1 else ()):
                    self.assertGreater(summary[name], 0, name)

    def test_counts_positions_without_a_ratio(self):
        behaviour, current = recordings(seed=2)
        # A sampled token without a log-prob, as -9999 or null, is not listed.
        hidden = 0
        for i, entry in enumerate(current):
            if entry["id"] not in [token["id"] for token in entry["top_logprobs"]]:
                entry["logprob"] = (-9999.0, None)[i % 2]
                hidden += 1
        summary = self.check(behaviour, current)
        self.assertGreater(hidden, 10)
        self.assertEqual((summary["unscored"], summary["positions"]), (hidden, len(current)))

    def test_the_common_prefix_ends_with_the_first_difference(self):
        behaviour, current = recordings(seed=3)
        other = next(token for token in current[41]["top_logprobs"] if token["id"] != current[41]["id"])
        current[41].update(other)
        self.assertEqual(self.check(behaviour, current)["positions"], 42)

    def test_positions_add_up_to_the_summary(self):
        report = compare(*recordings(seed=6))
        decided, summary = report["positions"], report["decisions"]
        self.assertEqual(len(decided), summary["positions"])
        self.assertEqual(sum(d["decision"] == "accepted" for d in decided), summary["accepted"])
        for field, of in (
            ("mean_d", lambda d: abs(d["log_ratio"])),
            ("mean_acceptance_probability", lambda d: d["acceptance_probability"]),
            ("mean_log_envelope", lambda d: d["log_envelope"]),
            ("mean_residual_mass", lambda d: d["residual_mass"]),
        ):
            mean = sum(of(d) for d in decided if d["decision"] != "unscored") / len(decided)
            self.assertAlmostEqual(mean, summary[field], places=6, msg=field)

    def test_means_of_nothing_are_null(self):
        behaviour, _ = recordings(seed=5, positions=1)
        report = compare(behaviour, [])
        summary = report["decisions"]
        self.assertEqual((report["positions"], summary["positions"]), ([], 0))
        for name in ("mean_d", "accept_rate", "mean_residual_mass"):
            self.assertIsNone(summary[name])


if __name__ == "__main__":
    unittest.main(verbosity=2)
