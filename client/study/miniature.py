"""The study's model, task and engine, for programs in Python."""

import ctypes
import pathlib
import threading

import numpy as np

_LIBRARY = ctypes.CDLL(str(pathlib.Path(__file__).with_name("libminiature.so")))
_LIBRARY.sis_miniature_new.restype = ctypes.c_void_p
for _name in ("vocabulary", "prompt_length", "response_length", "parameters"):
    getattr(_LIBRARY, f"sis_miniature_{_name}").restype = ctypes.c_uint64


def _pointer(array):
    """Of an array that is alive as long as the call."""
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


class Miniature:
    """A transformer of width 64 with two layers that adds hexadecimal numbers, least significant
    digit first, and its optimiser.

    A prompt is `digits` digits of each number and the two signs, as in "A40+F31="; its only right
    answer is the sum and a stop, as in "974.", with as many digits as it has but no fewer than the
    summands. Problems are random by a seed. The same arguments give the same bits everywhere.
    Threads: any, one call at a time; others run meanwhile.
    """

    STOP = 18
    SYMBOLS = "0123456789ABCDEF+=."

    def __init__(self, digits):
        self.digits = digits
        self._lock = threading.Lock()
        self._handle = ctypes.c_void_p(_LIBRARY.sis_miniature_new(digits))
        self.vocabulary_size = _LIBRARY.sis_miniature_vocabulary(self._handle)
        self.prompt_length = _LIBRARY.sis_miniature_prompt_length(self._handle)
        # The most tokens of a response, with the stop.
        self.response_length = _LIBRARY.sis_miniature_response_length(self._handle)
        self.parameter_count = _LIBRARY.sis_miniature_parameters(self._handle)

    def __del__(self):
        _LIBRARY.sis_miniature_delete(self._handle)

    def warm_up(self, seed, accuracy):
        """Parameters, float32 [parameter_count], that supervision has taught until this share of
        512 sampled answers was right."""
        parameters = np.empty(self.parameter_count, np.float32)
        _LIBRARY.sis_miniature_warm_up(self.digits, ctypes.c_uint64(seed), ctypes.c_double(accuracy), _pointer(parameters))
        return parameters

    def prompts(self, problems, count):
        """int32 [count, prompt_length] of the problems with this seed."""
        prompts = np.empty((count, self.prompt_length), np.int32)
        _LIBRARY.sis_miniature_prompts(
            self._handle, ctypes.c_uint64(problems), ctypes.c_uint64(count), _pointer(prompts)
        )
        return prompts

    def rewards(self, problems, count, responses):
        """float32 [N]: 1 where a response is the answer up to its stop, else 0.

        responses: int32 [N, response_length], the same number to every prompt, one after the other.
        """
        responses = np.ascontiguousarray(responses, np.int32)
        rewards = np.empty(len(responses), np.float32)
        _LIBRARY.sis_miniature_rewards(
            self._handle, ctypes.c_uint64(problems), ctypes.c_uint64(count), ctypes.c_uint64(len(responses) // count),
            _pointer(responses), _pointer(rewards),
        )  # fmt: skip
        return rewards

    def generate(self, parameters, bits, problems, count, group, seed):
        """Samples `group` responses to each of `count` prompts at temperature 1, from matrices
        rounded to integers of `bits` bits with one scale each, or from exact ones if bits is 0.

        Returns tokens int32 [N, response_length], lengths int64 [N] with the stop, and the
        log-probs they were drawn from, float32 [N, response_length, vocabulary_size].
        """
        shape = (count * group, self.response_length)
        tokens = np.empty(shape, np.int32)
        lengths = np.empty(shape[0], np.int64)
        log_probs = np.empty((*shape, self.vocabulary_size), np.float32)
        with self._lock:
            _LIBRARY.sis_miniature_generate(
                self._handle, _pointer(parameters), bits, ctypes.c_uint64(problems), ctypes.c_uint64(count),
                ctypes.c_uint64(group), ctypes.c_uint64(seed), _pointer(tokens), _pointer(lengths), _pointer(log_probs),
            )  # fmt: skip
        return tokens, lengths, log_probs

    def log_probs(self, parameters, prompts, responses):
        """float32 [N, response_length, vocabulary_size]: the distributions that the tokens of the
        responses, int32 [N, response_length], were or would be drawn from."""
        inputs = np.ascontiguousarray(np.concatenate([prompts, responses[:, :-1]], axis=1), np.int32)
        log_probs = np.empty((len(inputs), self.response_length, self.vocabulary_size), np.float32)
        with self._lock:
            _LIBRARY.sis_miniature_log_probs(
                self._handle, _pointer(parameters), ctypes.c_uint64(len(inputs)), _pointer(inputs), _pointer(log_probs)
            )
        return log_probs

    def step(self, parameters, d_logits, learning_rate):
        """One step of Adam on `parameters`, in place. d_logits, float32 [N, response_length,
        vocabulary_size]: gradients of the logits of the last call of log_probs."""
        with self._lock:
            _LIBRARY.sis_miniature_step(
                self._handle, ctypes.c_double(learning_rate), ctypes.c_uint64(len(d_logits)), _pointer(d_logits),
                _pointer(parameters),
            )  # fmt: skip
