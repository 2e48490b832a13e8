"""Whether two evaluations are the same, bit by bit."""

import dataclasses

import numpy as np

import sis


def assert_same_evaluation(test, got, expected):
    """But for what was counted before."""
    for field in dataclasses.fields(sis.Evaluation):
        mine, theirs = getattr(got, field.name), getattr(expected, field.name)
        if isinstance(theirs, np.ndarray):
            test.assertEqual(mine.tobytes(), theirs.tobytes(), field.name)
        elif field.name != "newly_counted":
            test.assertEqual(mine, theirs, field.name)
