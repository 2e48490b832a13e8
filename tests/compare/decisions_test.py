"""The decisions of sis.diagnose.compare beside the same numbers in double precision, from the files alone."""

import json
import math
import pathlib
import random
import tempfile
import unittest

from sis import diagnose

from tests.reference import numerics


def compare(a, b, k=None):
    return diagnose.compare(diagnose.read_file(str(a)), diagnose.read_file(str(b)), top_k=k or 0).as_json()


def positions_of(path):
    """[(sampled token, its log-prob, {token: log-prob}, most probable first)] of a file that gives
    ids."""
    content = json.loads(pathlib.Path(path).read_text())["logprobs"]["content"]
    return [
        (
            entry["id"],
            entry["logprob"],
            dict(sorted(((t["id"], t["logprob"]) for t in entry["top_logprobs"]), key=lambda t: (-t[1], t[0]))),
        )
        for entry in content
    ]


def expected(behaviour, current, k=None):
    """Returns the expected output of compare for one direction, in double precision. Neither file may
    list appended sampled tokens."""
    behaviour, current = positions_of(behaviour), positions_of(current)
    prefix = 0
    for (y, *_), (other, *_) in zip(behaviour, current):
        prefix += 1
        if y != other:
            break
    k = k or max(len(top) for _, _, top in behaviour)
    sequence_key = numerics.sequence_key(0, 0, "0")
    totals = dict(accepted=0, rejected=0, outside_top_k=0, unscored=0, a=0.0, d=0.0, d_sis=0.0, log_m=0.0, xi=0.0,
                  k3=0.0)
    for t in range(prefix):
        y, log_q_y, log_q = behaviour[t]
        sampled, log_p_sampled, top = current[t]
        log_p = top if log_p_sampled is None or log_p_sampled <= -9999 else {sampled: log_p_sampled, **top}
        if y not in log_p:
            totals["unscored"] += 1
            continue
        members = list(log_q)[:k]
        log_w = log_p[y] - log_q_y
        log_m = max(log_p.get(v, min(top.values())) - log_q[v] for v in members)
        a = math.exp(log_w - log_m) if y in members else 0.0
        uniform = int(numerics.uniforms(sequence_key, numerics.np.array([t], numerics.np.uint32), 0)[0])
        if y not in members:
            decision = "outside_top_k"
        else:
            decision = "accepted" if uniform < a * 2**32 else "rejected"
        totals[decision] += 1
        totals["a"] += a
        totals["d"] += abs(log_w)
        totals["d_sis"] += 0 if decision == "accepted" else abs(log_w)
        totals["k3"] += math.exp(log_w) - 1 - log_w
        totals["log_m"] += log_m
        totals["xi"] += max(0.0, 1 - sum(math.exp(log_p[v]) for v in members if v in log_p))
    scored = prefix - totals["unscored"]
    return {
        "top_k": k,
        "positions": prefix,
        "unscored": totals["unscored"],
        "accepted": totals["accepted"],
        "rejected": totals["rejected"],
        "outside_top_k": totals["outside_top_k"],
        "accept_rate": totals["accepted"] / scored,
        "mean_acceptance_probability": totals["a"] / scored,
        "mean_d": totals["d"] / scored,
        "mean_d_sis": totals["d_sis"] / scored,
        "mean_k3": totals["k3"] / scored,
        "mean_log_envelope": totals["log_m"] / scored,
        "mean_residual_mass": totals["xi"] / scored,
    }


def write_recordings(folder, seed, positions=400, vocabulary=300, listed=(6, 5)):
    """Writes two engines' files of one text. Their logits differ by noise, and the second lists fewer
    tokens."""
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
            content.append(token(y, log_probs[y], [token(v, log_probs[v]) for v in order]))
    paths = [pathlib.Path(folder, f"{name}-{seed}.json") for name in ("behaviour", "current")]
    for path, content in zip(paths, contents):
        path.write_text(json.dumps({"message": "", "logprobs": {"content": content}}))
    return paths


def token(number, log_prob, top=None):
    fields = {"token": f"<{number}>", "id": number, "logprob": log_prob}
    return fields if top is None else {**fields, "top_logprobs": top}


class DecisionsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def check(self, behaviour, current, k=None):
        actual = compare(behaviour, current, k)["decisions"]
        wanted = expected(behaviour, current, k)
        self.assertEqual(list(actual), list(wanted))
        for name, value in wanted.items():
            if isinstance(value, int):
                self.assertEqual(actual[name], value, name)
            else:
                self.assertLessEqual(abs(actual[name] - value), 1e-5 * abs(value), f"{name}: {actual[name]}, {value}")
        return actual

    def test_agrees_with_double_precision(self):
        behaviour, current = write_recordings(self.folder, seed=1)
        for k in (None, 6, 3, 1):
            with self.subTest(k=k):
                summary = self.check(behaviour, current, k)
                # One member alone is its own envelope, and never rejected.
                for name in ("accepted", "outside_top_k") + (("rejected",) if k != 1 else ()):
                    self.assertGreater(summary[name], 0, name)

    def test_counts_positions_without_a_ratio(self):
        behaviour, current = write_recordings(self.folder, seed=2)
        recording = json.loads(current.read_text())
        # A sampled token without a log-prob, as -9999 or null, is not listed.
        content, hidden = recording["logprobs"]["content"], 0
        for i, entry in enumerate(content):
            if entry["id"] not in [t["id"] for t in entry["top_logprobs"]]:
                entry["logprob"] = (-9999.0, None)[i % 2]
                hidden += 1
        current.write_text(json.dumps(recording))
        summary = self.check(behaviour, current)
        self.assertGreater(hidden, 10)
        self.assertEqual(summary["unscored"], hidden)
        self.assertEqual(summary["positions"], len(content))

    def test_the_common_prefix_ends_with_the_first_difference(self):
        behaviour, current = write_recordings(self.folder, seed=3)
        recording = json.loads(current.read_text())
        entry = recording["logprobs"]["content"][41]
        other = next(t for t in entry["top_logprobs"] if t["id"] != entry["id"])
        entry["id"], entry["logprob"] = other["id"], other["logprob"]
        current.write_text(json.dumps(recording))
        self.assertEqual(self.check(behaviour, current)["positions"], 42)

    def test_positions_add_up_to_the_summary(self):
        behaviour, current = write_recordings(self.folder, seed=6)
        report = compare(behaviour, current)
        decided = report["positions"]
        summary = report["decisions"]
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
        behaviour, current = write_recordings(self.folder, seed=5, positions=1)
        recording = json.loads(current.read_text())
        recording["logprobs"]["content"] = []
        current.write_text(json.dumps(recording))
        report = compare(behaviour, current)
        summary = report["decisions"]
        self.assertEqual(report["positions"], [])
        self.assertEqual(summary["positions"], 0)
        self.assertIsNone(summary["mean_d"])
        self.assertIsNone(summary["accept_rate"])
        self.assertIsNone(summary["mean_residual_mass"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
