import threading
import unittest

import grpc

import sis
from sis import _errors
from sis._servers.circuit_breaker import CircuitBreaker


def down(code=grpc.StatusCode.UNAVAILABLE):
    raise _errors.from_status(code, "gone")


class CircuitBreakerTest(unittest.TestCase):
    def setUp(self):
        self.now = 100.0
        self.breaker = CircuitBreaker(lambda: self.now)
        self.probes = []

    def call(self, ask=lambda: "answer", probe=lambda: None):
        return self.breaker.call(ask, lambda: (self.probes.append(self.now), probe()))

    def fail(self, seconds=0.0, code=grpc.StatusCode.UNAVAILABLE):
        def ask():
            self.now += seconds
            down(code)

        with self.assertRaises(sis.Error):
            self.call(ask)

    def assert_skipped(self):
        with self.assertRaisesRegex(sis.Unavailable, "skipped until its next probe, after .*gone"):
            self.call(lambda: self.assertTrue(False, "it was asked"))

    def test_a_replica_that_answers_with_errors_is_not_skipped(self):
        for code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INTERNAL):
            with self.assertRaises(sis.Error):
                self.call(lambda code=code: down(code))
        self.assertEqual(self.call(), "answer")
        self.assertEqual(self.probes, [])

    def test_it_is_skipped_in_proportion_to_what_it_cost(self):
        for waited, pause in ((0, 1), (0.02, 1), (0.5, 5), (60, 10)):
            for code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"):
                self.fail(waited, grpc.StatusCode[code])
                failed = self.now
                self.now = failed + 0.99 * pause
                self.assert_skipped()
                self.now = failed + 1.01 * pause
                self.assertEqual(self.call(), "answer")
        self.assertEqual(len(self.probes), 12)

    def test_one_call_probes_it_and_the_others_go_on_without(self):
        self.fail()
        self.now += 2
        others = []

        def probe():
            for _ in range(3):
                with self.assertRaises(sis.Unavailable):
                    self.call()
                others.append(True)

        self.assertEqual(self.call(probe=probe), "answer")
        self.assertEqual((len(others), len(self.probes)), (3, 1))
        self.assertEqual(self.call(), "answer")
        self.assertEqual(len(self.probes), 1)

    def test_a_probe_without_an_answer_leaves_it_alone_again(self):
        self.fail()
        self.now += 2

        def probe():
            self.now += 0.7
            down(grpc.StatusCode.DEADLINE_EXCEEDED)

        with self.assertRaises(sis.DeadlineExceeded):
            self.call(lambda: self.assertTrue(False, "it was asked"), probe)
        self.now += 6.9
        self.assert_skipped()
        self.now += 0.2
        # Whatever it says, it is there.
        self.assertEqual(self.call(probe=lambda: down(grpc.StatusCode.UNIMPLEMENTED)), "answer")

    def test_a_probe_that_could_not_be_sent_says_nothing(self):
        self.fail()
        self.now += 2
        with self.assertRaises(KeyError):
            self.call(probe=lambda: {}["closed"])
        self.assertEqual(self.call(), "answer")

    def test_threads_share_it(self):
        self.fail()
        self.now += 2
        answers = []

        def work():
            try:
                answers.append(self.call())
            except sis.Unavailable:
                pass

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(self.probes), 1)
        self.assertGreaterEqual(len(answers), 1)


if __name__ == "__main__":
    unittest.main()
