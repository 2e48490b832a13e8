"""Warnings during an outage of the service."""

import unittest
import warnings

import grpc

from sis import _errors
from sis._outage import Outage


class OutageTest(unittest.TestCase):
    def test_each_outage_warns_once_in_whatever_python_shows_of_it(self):
        outage = Outage()
        with warnings.catch_warnings(record=True) as seen:
            # Python's own: of one place the same text is shown once.
            warnings.simplefilter("default")
            for _ in range(3):
                for kind in ("fetch", "evaluate", "fetch"):
                    outage.lost(kind, "no answer")
                outage.succeeded("fetch")
                outage.lost("fetch", "no answer")
                outage.succeeded("evaluate")
                outage.succeeded("fetch")
        texts = [str(warning.message) for warning in seen]
        self.assertEqual(texts, [f"no answer (outage {number})" for number in (1, 2, 3)])

    def test_what_is_lost_and_what_is_a_mistake(self):
        outage = Outage()
        refusal = lambda code: _errors.Refusal("s", 0, "block [0, 1)", code, "why")
        lost = [
            _errors.from_status(grpc.StatusCode.UNAVAILABLE, "no answer"),
            _errors.from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room"),
            _errors.AppendError([refusal(grpc.StatusCode.RESOURCE_EXHAUSTED)]),
        ]
        mistakes = [
            _errors.from_status(grpc.StatusCode.INVALID_ARGUMENT, "k"),
            _errors.AppendError(
                [refusal(grpc.StatusCode.RESOURCE_EXHAUSTED), refusal(grpc.StatusCode.ALREADY_EXISTS)]
            ),
        ]

        def raising(error):
            def call():
                raise error

            return call

        for error in lost:
            with self.subTest(error), self.assertWarnsRegex(RuntimeWarning, "no records, and training goes on"):
                self.assertIsNone(outage.asked("no records", raising(error)))
                self.assertEqual(outage.asked("no records", lambda: 7), 7)
        for error in mistakes:
            with self.subTest(error), self.assertRaises(type(error)):
                outage.asked("no records", raising(error))


if __name__ == "__main__":
    unittest.main()
