import math
import pathlib
import unittest

from sis._servers import placement

NAMES = [f"sis-{i}.sis:7777" for i in range(7)]
IDS = [f"prompt-{i // 8}/response-{i % 8}" for i in range(5_000)]


def placed(names, run_id="run", ids=IDS):
    where = placement.Placement(names)
    return [names[where.replica(run_id, sequence)] for sequence in ids]


class PlacementTest(unittest.TestCase):
    def test_golden_values(self):
        tokens = iter(pathlib.Path("tests/golden/placement.txt").read_text(encoding="ascii").split())
        text = lambda: bytes.fromhex(next(tokens)).decode()
        entries = 0
        for run in tokens:
            run_id, sequence, names = bytes.fromhex(run).decode(), text(), []
            for _ in range(int(next(tokens), 16)):
                names.append(text())
                self.assertEqual(placement.score(names[-1], run_id, sequence), int(next(tokens), 16))
            self.assertEqual(placement.Placement(names).replica(run_id, sequence), int(next(tokens), 16))
            entries += 1
        self.assertGreater(entries, 100)

    def test_a_replica_that_leaves_moves_its_own_sequences_only(self):
        for gone in NAMES:
            for before, after in zip(placed(NAMES), placed([name for name in NAMES if name != gone])):
                self.assertTrue(after == before if before != gone else after != gone)

    def test_shares_are_binomial_for_ids_and_names_of_every_kind(self):
        kinds = {
            "prompts": IDS,
            "numbers": [str(i) for i in range(len(IDS))],
            "last byte first": [str(i)[::-1] for i in range(len(IDS))],
            "long": ["x" * 100 + str(i) for i in range(len(IDS))],
        }
        lists = [NAMES, NAMES[:2], ["a", "b", "c"], [f"127.0.0.1:{50051 + i}" for i in range(5)]]
        for kind, ids in kinds.items():
            for names in lists:
                for run_id in ("run", "run-2"):
                    where = placed(names, run_id, ids)
                    for name in names:
                        with self.subTest(kind=kind, names=names, name=name):
                            self.assert_binomial(where.count(name), 1 / len(names))

    def test_runs_are_placed_independently(self):
        same = sum(a == b for a, b in zip(placed(NAMES, "run-1"), placed(NAMES, "run-2")))
        self.assert_binomial(same, 1 / len(NAMES))

    def assert_binomial(self, count, share):
        deviation = math.sqrt(len(IDS) * share * (1 - share))
        self.assertLess(abs(count - len(IDS) * share), 5 * deviation)

    def test_a_list_without_names_or_with_one_twice_is_refused(self):
        for names in ([], ["a", "b", "a"]):
            with self.assertRaises(ValueError):
                placement.Placement(names)


if __name__ == "__main__":
    unittest.main()
