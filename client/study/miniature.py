"""The study's training, for programs in Python. The same arguments give the same bits everywhere.

`start` and `cell` are settings as in cells.txt, a cell's with the arm: {"arm": "grpo+sampled"}.
Threads: any, a Training one at a time; others run meanwhile.
"""

import ctypes
import pathlib
from typing import NamedTuple

import numpy as np

from client.study.runs.results import FIELDS, POINTS, Outcome

_FLOATS, _DOUBLES, _INTS, _LONGS, _SIZES = (
    np.ctypeslib.ndpointer(kind, flags="C_CONTIGUOUS")
    for kind in (np.float32, np.float64, np.int32, np.int64, np.uint64)
)
_COUNT, _WORDS, _STEPS = ctypes.c_uint64, ctypes.c_char_p, ctypes.c_void_p
_LIBRARY = ctypes.CDLL(str(pathlib.Path(__file__).with_name("libminiature.so")))
for _name, _result, *_arguments in (
    ("check", _WORDS, _WORDS, _WORDS, _SIZES),
    ("warm_up", None, _WORDS, _COUNT, _FLOATS),
    ("train", None, _WORDS, _WORDS, _COUNT, _FLOATS, _DOUBLES),
    ("begin", _STEPS, _WORDS, _WORDS, _COUNT, _FLOATS),
    ("end", None, _STEPS),
    ("generate", ctypes.c_double, _STEPS, _COUNT, _LONGS, _INTS, _FLOATS, _INTS, _FLOATS),
    ("gather", _COUNT, _STEPS, _COUNT, _LONGS, _FLOATS, _FLOATS, _FLOATS),
    ("update", None, _STEPS, _FLOATS),
):
    _function = getattr(_LIBRARY, f"sis_study_{_name}")
    _function.restype, _function.argtypes = _result, _arguments


# Where records may begin that a server is to read where they are.
_ALIGNED = 16


def _words(settings):
    return " ".join(f"{name}={value}" for name, value in settings.items()).encode()


class Sizes(NamedTuple):
    parameters: int
    vocabulary: int
    # The most tokens of a response, with the one that ends it.
    response_length: int
    rollouts: int
    responses: int  # of a rollout
    updates: int  # by a rollout
    top_k: int


def check(start, cell):
    """The Sizes of such a run. ValueError if there are no such settings."""
    sizes = np.zeros(len(Sizes._fields), np.uint64)
    wrong = _LIBRARY.sis_study_check(_words(start), _words(cell), sizes)
    if wrong is not None:
        raise ValueError(wrong.decode())
    return Sizes(*sizes.tolist())


def warm_up(start, seed):
    """The parameters to start from."""
    parameters = np.empty(check(start, {"top_k": 1}).parameters, np.float32)
    _LIBRARY.sis_study_warm_up(_words(start), seed, parameters)
    return parameters


def train(start, cell, seed, parameters):
    """A whole run: what came of it. By the service's kernels, without a service."""
    check(start, cell)
    values = np.empty(len(FIELDS) + POINTS)
    _LIBRARY.sis_study_train(_words(start), _words(cell), seed, parameters.copy(), values)
    return Outcome(dict(zip(FIELDS, values.tolist())), values[len(FIELDS) :])


class Rollout(NamedTuple):
    """Of N responses: what is to be recorded. Behind the end of a response the arrays hold anything."""

    reward: float  # mean
    lengths: np.ndarray  # int64 [N]
    # [N, response_length or more], and of the K most probable tokens [N, the same, K].
    sampled_ids: np.ndarray
    sampled_log_probs: np.ndarray
    ids: np.ndarray
    log_probs: np.ndarray


class MiniBatch(NamedTuple):
    """Of some responses' n tokens: what is to be decided."""

    responses: np.ndarray  # int64
    log_probs: np.ndarray  # [n, K], at the recorded ids
    sampled_log_probs: np.ndarray  # [n]
    advantages: np.ndarray  # [n]


class Training:
    """A run step by step, for who records and decides himself."""

    def __init__(self, start, cell, seed, parameters):
        self.sizes = check(start, cell)
        self._steps = _LIBRARY.sis_study_begin(_words(start), _words(cell), seed, parameters)

    def __del__(self):
        _LIBRARY.sis_study_end(getattr(self, "_steps", None))

    def generate(self, empty):
        """The next Rollout. empty(positions): arrays for the records of so many, to be written to:
        sampled ids and log-probs, and those of the K most probable tokens, as Client.empty_top_k
        makes them. Every response begins at a multiple of 16 positions of them."""
        count = self.sizes.responses
        stride = -(-self.sizes.response_length // _ALIGNED) * _ALIGNED
        lengths, arrays = np.empty(count, np.int64), empty(count * stride)
        reward = _LIBRARY.sis_study_generate(self._steps, stride, lengths, *arrays)
        return Rollout(reward, lengths, *(array.reshape(count, stride, *array.shape[1:]) for array in arrays))

    def gather(self, update):
        """A MiniBatch of the rollout; all of them, in order."""
        responses = np.empty(self.sizes.responses // self.sizes.updates, np.int64)
        most = len(responses) * self.sizes.response_length
        shapes = ((most, self.sizes.top_k), most, most)
        arrays = [np.empty(shape, np.float32) for shape in shapes]
        n = _LIBRARY.sis_study_gather(self._steps, update, responses, *arrays)
        return MiniBatch(responses, *(array[:n] for array in arrays))

    def update(self, coefficients):
        """A step from the mini-batch that was gathered last. coefficients: float32 [n]."""
        _LIBRARY.sis_study_update(self._steps, coefficients)
