"""Laws of the losses of TorchRL and of the slime family, with a real server and models of transformers on a CPU."""

import copy
import warnings

import tiny_model
import torch
from in_float64 import distance
from server.testing.live_server import LiveServer
from transformers import AutoModelForCausalLM, AutoTokenizer

import sis

SEED, K = 11, 20
PROMPTS = ["the tokens of a model", "one", "it is there for as long as", "a folder"]
CLIP = (0.1, 0.15)
RULES = ({"damped_truncation": True}, {"soft_acceptance": True, "weight": "expected"})


class LossLaws:
    """A base next to unittest.TestCase. A subclass has
    - begun(address, **settings): a training with these settings of SisConfig
    - recorded(training): a rollout by `behaviour`, recorded
    - update(training, rollout, model, step, way): loss, gradients and metrics of the update `step`; way None: by the
      framework's own loss
    - exact(training, rollout, step, way, rule): loss, gradients and the share of accepted tokens, by the formulas
    """

    # The ways to a loss, by name, and the names of those that are tested with rules.
    WAYS, RULED = {}, ()
    # Largest error of a gradient, as a share of the largest gradient.
    TOLERANCE = 1e-4
    # The beginning of the names of metrics.
    METRICS = ""

    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.folder = tiny_model.make_for(cls)
        cls.tokenizer = AutoTokenizer.from_pretrained(cls.folder)
        cls.behaviour = AutoModelForCausalLM.from_pretrained(cls.folder, dtype=torch.float32).eval()
        torch.manual_seed(1)
        cls.current = copy.deepcopy(cls.behaviour)
        with torch.no_grad():
            for parameter in cls.current.parameters():
                parameter += 0.02 * parameter.std(correction=0) * torch.randn_like(parameter)
        cls.server = LiveServer()
        cls.addClassCleanup(cls.server.close)
        cls.client = sis.Client(cls.server.address)
        cls.addClassCleanup(cls.client.close)

    def settings(self, **changed):
        run = self.id().rpartition(".")[2]
        return {"run": run, "seed": SEED, "top_k": K, "log_prob_encoding": "float32", **changed}

    def totals(self, run, step):
        return self.client.list_steps(self.client.get_run(run).run, draws=[step])[step].totals

    def check_as_float64(self, training, run, rollout, step, way, rule=None):
        value, gradients, metrics = self.update(training, rollout, self.current, step, way)
        wanted, exact, share = self.exact(training, rollout, step, way, rule)
        self.assertAlmostEqual(value, wanted, delta=1e-5)
        self.assertLess(distance(gradients, exact), self.TOLERANCE)
        self.assertTrue(0.1 < share < 0.9, share)
        totals = self.totals(run, step)
        self.assertAlmostEqual(totals.accept_rate, share, places=9)
        self.assertEqual((totals.missing, totals.envelope_violations), (0, 0))
        self.assertEqual([metrics[f"{self.METRICS}{name}"] for name in ("missing", "envelope_violations")], [0, 0])
        return wanted, exact

    def test_decisions_are_those_of_float64(self):
        training = self.begun(self.server.address)
        rollout = self.recorded(training)
        for step, way in enumerate(self.WAYS, start=5):
            with self.subTest(way):
                _, exact = self.check_as_float64(training, self.settings()["run"], rollout, step, way)
                # Another draw gives another result.
                other = self.exact(training, rollout, 0, way, None)[1]
                self.assertGreater(distance(other, exact), self.TOLERANCE)

    def test_rules_are_those_of_float64(self):
        for number, rule in enumerate(RULES):
            for way in self.RULED:
                with self.subTest(way, **rule):
                    run = f"{way}-{number}"
                    training = self.begun(self.server.address, run=run, **rule)
                    rollout = self.recorded(training)
                    wanted, _ = self.check_as_float64(training, run, rollout, 0, way, next(iter(rule)))
                    # Without the rule the result differs.
                    self.assertGreater(abs(self.exact(training, rollout, 0, way, None)[0] - wanted), 1e-3)

    def test_equal_policies_accept_all(self):
        training = self.begun(self.server.address)
        self.update(training, self.recorded(training), self.behaviour, 0, self.RULED[0])
        totals = self.totals(self.settings()["run"], 0)
        self.assertEqual((totals.rejected, totals.missing), (0, 0))
        self.assertLess(totals.d / totals.scored, 1e-5)

    def check_as_the_frameworks_own(self, training, rollout, step, found):
        own = self.update(training, rollout, self.current, step, None)
        self.assertEqual(found[0], own[0])
        self.assertTrue(all(map(torch.equal, found[1], own[1])))

    def test_without_a_server_it_is_the_frameworks_own_loss(self):
        server = LiveServer()
        self.addCleanup(server.kill)
        training = self.begun(server.address)
        rollout = self.recorded(training)
        with_decisions = self.update(training, rollout, self.current, 0, self.RULED[0])
        server.kill()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            lost = self.update(training, rollout, self.current, 1, self.RULED[0])
        self.assertEqual(sum("and training goes on" in str(warning.message) for warning in seen), 1)
        self.assertEqual(lost[2][f"{self.METRICS}missing"], 1)
        self.check_as_the_frameworks_own(training, rollout, 1, lost)
        self.assertNotEqual(with_decisions[0], lost[0])

    def test_observing_leaves_the_loss_as_it_is(self):
        training = self.begun(self.server.address, observe=True)
        rollout = self.recorded(training)
        observed = self.update(training, rollout, self.current, 0, self.RULED[0])
        self.check_as_the_frameworks_own(training, rollout, 0, observed)
        metrics = {name: observed[2][f"{self.METRICS}{name}"] for name in ("accept_rate", "sis/d", "d_sis")}
        self.assertGreater(metrics["accept_rate"], 0.1)
        self.assertAlmostEqual(metrics["sis/d"], metrics["d_sis"], places=6)
        for name in ("damped_truncation/touched", "tis/effective", "icepop/zeroed", "soft_acceptance/d"):
            self.assertTrue(0 <= observed[2][f"{self.METRICS}{name}"] <= 1, name)
