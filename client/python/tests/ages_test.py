import itertools
import math
import random
import unittest

from sis._ages import AgeTotals, age_advice

CLASSES = ((0, 0), (1, 1), (2, 3), (4, 7), (8, None))


def age(index, accepted, scored, ahead=False, **sums):
    first, last = (0, 0) if ahead else CLASSES[index]
    return AgeTotals(first, last, ahead, accepted, scored - accepted, **sums)


class AgeAdviceTest(unittest.TestCase):
    def test_limits_leave_the_totals_of_younger_tokens(self):
        random.seed(3)
        steps = [
            tuple(
                age(i, random.randrange(50), 100, d=random.random(), weight=100 * random.random(), weight_squared=100)
                for i in sorted(random.sample(range(5), 3))
            )
            for _ in range(7)
        ]
        youngest = [random.randrange(12) for _ in range(20)]
        advice = age_advice(steps, youngest)
        classes = sorted({of.from_ for of in itertools.chain(*steps)})
        expected = [None, *(first - 1 for first in reversed(classes[1:]))]
        self.assertEqual([limit.max_staleness for limit in advice.limits], expected)
        for limit in advice.limits:
            most = math.inf if limit.max_staleness is None else limit.max_staleness
            left = [of for of in itertools.chain(*steps) if of.from_ <= most]
            scored = sum(of.scored for of in left)
            weight, squared = sum(of.weight for of in left), sum(of.weight_squared for of in left)
            self.assertAlmostEqual(limit.tokens_left_out, 1 - scored / 2100)
            self.assertAlmostEqual(limit.sequences_left_out, sum(of > most for of in youngest) / 20)
            self.assertAlmostEqual(limit.accept_rate, sum(of.accepted for of in left) / scored)
            self.assertAlmostEqual(limit.d, sum(of.d for of in left) / scored)
            self.assertAlmostEqual(limit.effective_sample_size, weight**2 / squared / scored)

    def test_the_youngest_age_with_fewer_than_half_is_named(self):
        fresh, old = age(0, 900, 1000), age(3, 400, 1000)
        advice = age_advice([[fresh, old], [age(1, 600, 1000), age(4, 100, 1000)]])
        self.assertEqual(advice.max_staleness, 3)
        self.assertEqual(
            advice.text,
            "At age 4-7, in policy versions, 40.0% are accepted: less than half. max_staleness 3 would leave out 50.0% "
            "of the 4000 tokens of the last 2 steps; of the others 75.0% are accepted, and without it 50.0% of all.",
        )
        for ages, text in (
            ([fresh, age(3, 500, 1000)], "At every age at least half of 2000 tokens"),
            ([age(0, 499, 1000), old], "does not help"),
        ):
            advice = age_advice([ages])
            self.assertIn(text, advice.text)
            self.assertIsNone(advice.max_staleness)

    def test_small_classes_are_not_judged_by(self):
        self.assertIn("At every age", age_advice([[age(0, 900, 1000), age(3, 0, 99)]]).text)
        self.assertIn("At age 4-7", age_advice([[age(0, 900, 1000), age(3, 0, 99)], [age(3, 0, 1)]]).text)

    def test_tokens_ahead_are_left_by_every_limit(self):
        ahead = age(0, 0, 1000, ahead=True)
        advice = age_advice([[age(0, 900, 1000), age(2, 100, 1000), ahead]])
        self.assertEqual([limit.tokens_left_out for limit in advice.limits], [0, 1 - 2 / 3])
        self.assertTrue(math.isnan(advice.limits[0].sequences_left_out))
        self.assertEqual(age_advice([[ahead]]).limits, ())

    def test_one_age_or_no_token_leaves_no_limits(self):
        self.assertEqual(age_advice([[age(1, 900, 1000)], [age(1, 1, 10)]]).limits, ())
        self.assertEqual((age_advice([]).text, age_advice([()]).text), ("", ""))


if __name__ == "__main__":
    unittest.main()
