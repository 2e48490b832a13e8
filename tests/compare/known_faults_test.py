"""A driver with known faults, on a real server: each gets its verdict and its diagnosis, and a healthy run neither.

The worker records real engines' log-probs, and the trainer evaluates them after the fault has changed them.
"""

import random
import time
import unittest

import numpy as np
import sis
from server.testing.live_server import LiveServer
from sis.diagnose import diagnose_run
from tests.compare import cases, recordings

VOCABULARY = 300_000
DRAWS = 4
# A verdict needs 1000 tokens.
TOKENS = 1200
RULE_PATIENCE_SECONDS = 300


def without_holes(responses):
    """llama.cpp leaves out what a worker would record of some sampled tokens: any small log-prob stands for it, and the
    trainer masks the position."""

    def fill(position):
        if position.log_prob > cases.NOTHING:
            return position
        left = 1 - sum(np.exp(value) for _, value in position.top)
        log_prob = min(position.top[-1][1] - 1, float(np.log(max(left, 1e-9) / 2)))
        return recordings.Position(position.token, log_prob, position.top)

    return cases.each(responses, fill)


def gathered(position, ids):
    """Returns a trainer's log-probs at `ids`. Unlisted tokens get the last listed log-prob, or less if less mass is left."""
    listed, least = dict(position.top), position.top[-1][1]
    left = max(1 - sum(np.exp(value) for value in listed.values()), 1e-9)
    unlisted = min(least, float(np.log(left / max(1, sum(i not in listed for i in ids)))))
    return [listed.get(i, unlisted) for i in ids]


def both_known(engine, trainer):
    """(base, trainer) of two recordings of one text; where either has no log-prob of the token, the engine has none."""

    def known(a, b):
        return a if b.log_prob > cases.NOTHING else recordings.Position(a.token, cases.NOTHING, a.top)

    pairs = zip(engine.responses, trainer.responses, strict=True)
    responses = [[known(a, b) for a, b in zip(*pair, strict=True)] for pair in pairs]
    return recordings.Base(responses, engine.noise), lambda *_: trainer.responses


def another_context(base, rng):
    """The sampled tokens' log-probs are those of the lists."""
    rows = cases.elsewhere(cases.noisy(base, rng), rng, lambda *_: True)
    return cases.each(rows, lambda p: recordings.Position(p.token, dict(p.top).get(p.token, cases.NOTHING), p.top))


# The trainer's values, of the base and a generator; the first rule of the verdict, and the diagnosis' faults; its words.
FAULTS = (
    ("healthy", cases.noisy, ([], []), "."),
    (
        "temperature", lambda base, rng: cases.each(cases.noisy(base, rng), cases.at(0.7)),
        (["SisFreshTokensDiffer"], ["temperature"]), r"B looks like A at temperature 0\.(6[7-9]|7[0-3])",
    ),
    ("template", another_context, (["SisEnginesDiffer"], ["weights"]), "chat template"),
    (
        "column", lambda base, rng: cases.moved(cases.noisy(base, rng), 1, lists=False),
        (["SisEnvelopeViolations"], ["sampled_shifted"]), ".",
    ),
    (
        "rows", lambda base, rng: cases.moved(cases.noisy(base, rng), 1),
        (["SisEnginesDiffer"], ["lists_shifted"]), ".",
    ),
)  # fmt: skip


def run_id(fault, base):
    return f"{fault}-{base}".replace(" ", "_")


class Driver:
    """A worker and a trainer of one run."""

    def __init__(self, client, name, base, top_k):
        self.client = client
        self.engine = without_holes(cases.cut(base.responses))
        self.known = [p.log_prob > cases.NOTHING for response in base.responses for p in response]
        self.repeats = -(-TOKENS // sum(map(len, self.engine)))
        self.top_k = min(top_k, min(len(position.top) for response in self.engine for position in response))
        self.run = client.create_run(name, seed=1, vocabulary_size=VOCABULARY, top_k=self.top_k)

    def append(self, prefix, versions=None):
        """Rollouts of all responses, again and again; versions[i] made the i-th."""
        names = []
        with self.client.append(self.run, sampling=sis.Sampling("raw")) as stream:
            for repeat in range(self.repeats):
                for number, response in enumerate(self.engine):
                    names.append(f"{prefix} {repeat}-{number}")
                    tops = [position.top[: self.top_k] for position in response]
                    stream.block(
                        names[-1],
                        first_position=0,
                        policy_version=versions[number] if versions else 0,
                        top_k_ids=np.array([[i for i, _ in top] for top in tops], np.int32),
                        top_k_log_probs=np.array([[value for _, value in top] for top in tops], np.float32),
                        sampled_ids=np.array([position.token for position in response], np.int32),
                        sampled_log_probs=np.array([position.log_prob for position in response], np.float32),
                    )
        return names

    def evaluate(self, draw, names, trainer):
        """Evaluates. trainer() computes the trainer's positions of all responses, again for each repeat."""
        records = self.client.fetch_top_k(self.run, names)
        computed = [p for _ in range(self.repeats) for response in trainer() for p in response]
        log_probs = [gathered(p, ids) for p, ids in zip(computed, records.ids.tolist(), strict=True)]
        sampled = [
            p.log_prob if p.log_prob > cases.NOTHING else dict(zip(ids, row, strict=True)).get(p.token, min(row))
            for p, ids, row in zip(computed, records.ids.tolist(), log_probs, strict=True)
        ]
        self.client.evaluate(
            self.run,
            records,
            draw=draw,
            log_probs=np.array(log_probs, np.float32),
            sampled_log_probs=np.array(sampled, np.float32),
            options=sis.EvaluateOptions(mask=np.array(self.known * self.repeats)),
        )


class KnownFaultsTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer("--inspected_bytes=268435456", cache_bytes=256 << 20)
        cls.addClassCleanup(cls.server.close)
        cls.client = sis.Client(cls.server.address, timeout=60)
        cls.addClassCleanup(cls.client.close)
        cls.bases = recordings.bases()
        # These begin first, because only time reveals that a trainer is dead.
        cls.dead = {name: cls.dead_trainer(name, base) for name, base in cls.bases.items()}

    @classmethod
    def dead_trainer(cls, name, base):
        """Three times the trainer reads what the workers record, the fourth time it does not."""
        rng = random.Random(1)
        driver = Driver(cls.client, run_id("dead trainer", name), base, cases.LISTED)
        for draw in range(DRAWS - 1):
            driver.evaluate(draw, driver.append(f"draw {draw}"), lambda: cases.noisy(base, rng))
        driver.append("unread")
        return driver.run.id

    def driven(self, fault, name, trainer, top_k=cases.LISTED, versions=None, base=None):
        """The id of a run in which trainer(base, rng) evaluates what was recorded."""
        base, rng = base or self.bases[name], random.Random(1)
        driver = Driver(self.client, run_id(fault, name), base, top_k)
        names = driver.append("rollout", versions)
        if versions:
            self.client.advance_version(driver.run, max(versions))
        for draw in range(DRAWS):
            driver.evaluate(draw, names, lambda: trainer(base, rng))
        return driver.run.id

    def diagnosed(self, run_id):
        """([rule of the verdict], [fault of the diagnosis], report)."""
        status = self.client.get_run(run_id)
        report = diagnose_run(self.client, run_id).as_json()
        faults = [check["name"] for check in report["checks"] if check["outcome"] == "fault"]
        rules = [finding["rule"] for finding in report["findings"]]
        self.assertEqual(report["run_verdict"], status.verdict.name)
        self.assertEqual(rules, [finding.rule for finding in status.findings])
        self.assertEqual(report["fault"], bool(rules or faults))
        return rules, faults, report

    def test_faults_of_every_position(self):
        for name, base in self.bases.items():
            for fault, trainer, expected, said in FAULTS:
                with self.subTest(fault, base=name):
                    rules, faults, report = self.diagnosed(self.driven(fault, name, trainer))
                    self.assertEqual((rules[:1], faults), expected, report["findings"])
                    self.assertRegex(report["verdict"][0], said)
                    if not rules:
                        self.assertEqual((report["run_verdict"], bool(report["undecided"])), ("HEALTHY", False))

    def test_stale_workers(self):
        for name, base in self.bases.items():
            with self.subTest(name):
                count = len(base.responses)
                # The surer a policy is, the less of it is moved.
                nats = 1.5 if name in ("synthetic", "SmolLM2-135M") else 2.5

                def trainer(base, rng, count=count, nats=nats):
                    return cases.each(cases.noisy(base, rng), cases.moved_by(nats, rng), range(0, count, 2))

                versions = [number % 2 * 3 for number in range(count)]
                rules, faults, report = self.diagnosed(self.driven("stale", name, trainer, versions=versions))
                self.assertEqual((rules[:1], faults), (["SisStaleTokensDiffer"], ["staleness"]), report["findings"])

    def test_too_small_a_k(self):
        for name, base in self.bases.items():
            with self.subTest(name):
                positions = [position for response in base.responses for position in response]
                left_out = 1 - np.mean([np.exp(position.top[0][1]) for position in positions])
                rules, faults, report = self.diagnosed(self.driven("small", name, cases.noisy, top_k=1))
                if left_out < 0.2:  # of a policy so certain one token does
                    self.assertEqual((rules, faults), ([], []), report["findings"])
                    continue
                self.assertEqual((rules[:1], faults), (["SisResidualMassHigh"], ["coverage"]), report["findings"])
                self.assertIn("K is too small", report["verdict"][0])

    def test_an_engine_of_4_bits(self):
        """Is what somebody may have chosen: the diagnosis names it, and the verdict lets it be."""
        for name, base in self.bases.items():
            with self.subTest(name):
                trainer = lambda base, rng: cases.noisy(base, rng, 2.5)  # noqa: E731
                if name == "SmolLM2-135M":  # of which there is a recording
                    base, trainer = both_known(recordings.small_model("4_bit"), base)
                elif name == "synthetic":  # whose noise is a third of what an engine's is
                    trainer = lambda base, rng: cases.noisy(base, rng, 6)  # noqa: E731
                run = self.driven("4 bits", name, trainer, base=base)
                rules, faults, report = self.diagnosed(run)
                self.assertEqual((rules, faults, report["run_verdict"]), ([], [], "HEALTHY"), report["verdict"])
                self.assertEqual(report["d"]["level"], "4_bit", report["d"])
                self.assertIn("4-bit weights", report["verdict"][0])

    def test_z_a_dead_trainer(self):
        for name, base in self.bases.items():
            with self.subTest(name):
                deadline = time.monotonic() + RULE_PATIENCE_SECONDS
                while not self.client.get_run(self.dead[name]).findings and time.monotonic() < deadline:
                    time.sleep(1)
                rules, faults, report = self.diagnosed(self.dead[name])
                self.assertEqual((rules, faults), (["SisTrainerStopped"], []))
                self.assertTrue(report["fault"])
                self.assertIn("Check the trainer", report["findings"][0]["action"])
                self.assertIn("Of its tokens: no fault was found", report["verdict"][0])
                self.assertNotIn("No fault was found", " ".join(report["verdict"]))


if __name__ == "__main__":
    unittest.main()
