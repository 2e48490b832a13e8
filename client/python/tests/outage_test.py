"""What is said while the service is away."""

import unittest
import warnings

from sis.outage import Outage


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


if __name__ == "__main__":
    unittest.main()
