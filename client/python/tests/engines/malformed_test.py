"""Answers that engines malformed, in every form that an adapter reads: what is recorded at position t is token t's, or
nothing is."""

import math
import random
import unittest
import warnings

import fake_service
import numpy as np
from engine_forms import FORMS, K, position

from sis import MissingReason
from sis.engines import MalformedOutput, Recorder

VOCABULARY = 10_000
NAN, INFINITY = math.nan, math.inf
POSITIONS, SEQUENCES = 6, 20
# Which position is at fault, and in which sequence.
AT, NAMED = 3, "s7"

# One position that is at fault.
OF_POSITION = {
    "the sentinel of vLLM": lambda good: good._replace(own=-9999.0),
    "the sentinel of SGLang and llama.cpp": lambda good: good._replace(own=-3.4028235e38),
    "-inf": lambda good: good._replace(own=-INFINITY),
    "NaN": lambda good: good._replace(own=NAN),
    "+inf": lambda good: good._replace(own=INFINITY),
    "too low for float32": lambda good: good._replace(own=-1000.5),
    "no log-prob": lambda good: good._replace(own=None),
    "a probability above 1": lambda good: good._replace(own=0.5),
    "a listed NaN": lambda good: good._replace(tops=with_second(good.tops, NAN)),
    "a listed null": lambda good: good._replace(tops=with_second(good.tops, None)),
    "listed probabilities above 1": lambda good: good._replace(tops=with_second(good.tops, -0.1)),
    "no list": lambda good: good._replace(tops=None),
    "padding: exactly 0, and nothing listed": lambda good: good._replace(own=0.0, tops={}),
    "a sampled id of 2^31": lambda good: good._replace(token=1 << 31),
    "a sampled id beyond the vocabulary": lambda good: good._replace(token=VOCABULARY),
    "a listed id of 2^31": lambda good: good._replace(tops=with_id(good.tops, 1 << 31)),
    "a listed id of 2^32 + 5": lambda good: good._replace(tops=with_id(good.tops, (1 << 32) + 5)),
    "a listed id beyond the vocabulary": lambda good: good._replace(tops=with_id(good.tops, VOCABULARY)),
}
# Reasons of some of the faults above. All others have INVALID_LOG_PROB.
REASONS = {
    "the sentinel of vLLM": MissingReason.NO_LOG_PROB,
    "the sentinel of SGLang and llama.cpp": MissingReason.NO_LOG_PROB,
    "-inf": MissingReason.INFINITE_LOG_PROB,
    "too low for float32": MissingReason.NO_LOG_PROB,
    "no log-prob": MissingReason.NO_LOG_PROB,
    "padding: exactly 0, and nothing listed": MissingReason.NO_LOG_PROB,
}
# Values of the second listed token that say it has probability 0.
SLOTS = {"-inf": -INFINITY, "-9999": -9999.0, "the lowest float32": -3.4028235e38}


def with_second(tops, value):
    first, second, *others = tops
    return {first: tops[first], second: value, **{token: tops[token] for token in others}}


def with_id(tops, token):
    first, _, *others = tops
    return {first: tops[first], token: -2.5, **{other: tops[other] for other in others}}


class MalformedTest(fake_service.ServiceTest):
    def recorded(self, name, attempt=0):
        return self.service.sequences.get((self.run_.id, name, attempt), fake_service.Sequence())

    def assert_rows(self, name, missing, length, sealed=True):
        """Checks that every position has its own record, and that the `missing` positions are gaps."""
        held = self.recorded(name)
        self.assertEqual(sorted(held.gaps), sorted(missing), name)
        self.assertEqual(sorted(held.rows), [t for t in range(length) if t not in missing], name)
        self.assertEqual(held.sealed, length if sealed else None, name)
        for t, row in held.rows.items():
            self.assert_row(t, row)

    def assert_row(self, t, row):
        ids, own, tokens, values = (np.frombuffer(part, dtype) for part, dtype in zip(row, ("i4", "f4", "i4", "f4")))
        good = position(t)
        self.assertEqual(ids[0], good.token)
        self.assertAlmostEqual(own[0], good.own, places=5)
        listed = dict(zip(tokens.tolist(), values.tolist()))
        for token, value in good.tops.items():
            self.assertAlmostEqual(listed.pop(token), value, places=5)
        # A list that has room has the sampled token too.
        self.assertLessEqual(set(listed), {good.token, -1})

    def run_for(self, form):
        self.service.sequences.clear()
        self.run_ = self.client.create_run(
            "r", seed=1, vocabulary_size=VOCABULARY, top_k=K + 1, log_prob_encoding="float32"
        )
        recorder = Recorder(self.client, self.run_, form.adapter(), policy_version=0, interval=60)
        self.addCleanup(recorder.abandon)
        return recorder

    def ended(self, recorder):
        """Returns the report on the added outputs: an error of flush, or a warning."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                recorder.flush()
                text = ""
            except MalformedOutput as error:
                text = str(error)
        recorder.close()
        return "; ".join([text, *(str(warning.message) for warning in caught)])

    def check(self, form, answers, missing, sealed=True, length=POSITIONS):
        """answers: of the one at fault. Its neighbours are whole, and it is named."""
        recorder = self.run_for(form)
        for number in range(SEQUENCES):
            name = f"s{number}"
            whole = form.answer(list(map(position, range(POSITIONS))), "finished")
            for answer in answers if name == NAMED else [whole]:
                recorder.add(name, answer)
        said = self.ended(recorder)
        self.assertIn(f"sequence '{NAMED}', position", said)
        self.assertEqual(said.count("sequence '"), 1, said)
        for number in range(SEQUENCES):
            if f"s{number}" != NAMED:
                self.assert_rows(f"s{number}", [], POSITIONS)
        self.assert_rows(NAMED, missing, length, sealed)
        self.assertEqual(sum(recorder.unusable.values()), len(missing))
        return said

    def test_a_position_at_fault_costs_itself_only(self):
        for form in FORMS:
            for fault, changed in OF_POSITION.items():
                with self.subTest(form=form.name, fault=fault):
                    positions = [position(t) if t != AT else changed(position(t)) for t in range(POSITIONS)]
                    answer = form.answer(positions, "finished")
                    if answer is None:
                        continue  # It can't be said in this form.
                    said = self.check(form, [answer], [AT])
                    self.assertIn(f"position {AT}: ", said)
                    reason = REASONS.get(fault, MissingReason.INVALID_LOG_PROB)
                    if form.name == "llama.cpp, after sampling" and reason == MissingReason.NO_LOG_PROB:
                        # It has no sentinels, but probabilities of 0.
                        reason = MissingReason.INFINITE_LOG_PROB if positions[AT].own else reason
                    if form.name.startswith("SGLang, list") and fault == "no list":
                        reason = MissingReason.NO_LOG_PROB
                    # In Python it has no null.
                    if not (form.name.startswith("in this process") and fault == "no log-prob"):
                        self.assertEqual(self.recorded(NAMED).gaps, {AT: reason})

    def test_an_output_without_its_log_probs_costs_itself_only(self):
        for form in FORMS:
            for fault, changed in form.faults.items():
                with self.subTest(form=form.name, fault=fault):
                    answer = changed(form.answer(list(map(position, range(POSITIONS))), "finished"))
                    said = self.check(form, [answer], range(POSITIONS))
                    self.assertIn(f"positions [0, {POSITIONS}): ", said)

    def test_after_an_output_of_unknown_length_nothing_of_its_sequence_is_recorded(self):
        for form in FORMS:
            streamed = form.streams and not form.adapter().cumulative
            for fault, changed in form.unknown.items():
                with self.subTest(form=form.name, fault=fault):
                    parts = [range(2), range(2, 4), range(4, 6)] if streamed else [range(POSITIONS)]
                    answers = [
                        form.answer([position(t) for t in part], "finished" if part.stop == POSITIONS else None)
                        for part in parts
                    ]
                    at = 1 if streamed else 0
                    answers[at] = changed(answers[at])
                    said = self.check(form, answers, [], sealed=False, length=2 if streamed else 0)
                    self.assertIn(f"position {2 if streamed else 0}: the rest is not recorded", said)

    def test_a_token_of_probability_0_is_not_recorded_in_a_set(self):
        for form in FORMS:
            for name, value in SLOTS.items():
                with self.subTest(form=form.name, value=name):
                    good = position(AT)
                    positions = [position(t) for t in range(POSITIONS)]
                    positions[AT] = good._replace(tops=with_second(good.tops, value))
                    recorder = self.run_for(form)
                    recorder.add("a", form.answer(positions, "finished"))
                    self.assertEqual(self.ended(recorder), "")
                    ids = np.frombuffer(self.recorded("a").rows[AT][2], np.int32)
                    first, second, *others = good.tops
                    self.assertNotIn(second, ids)
                    self.assertLessEqual({first, *others}, set(ids.tolist()))

    def test_whatever_fails_nothing_is_ever_shifted(self):
        """Random streams, faults, versions and times of sending."""
        for form in FORMS:
            for seed in range(25):
                with self.subTest(form=form.name, seed=seed):
                    self.check_stream(form, random.Random(seed))

    def check_stream(self, form, draws):
        recorder = self.run_for(form)
        cumulative = recorder._adapter.cumulative
        lengths, noted, faulty, unknown, steps = {}, {}, {}, {}, []
        for number in range(6):
            name = f"s{number}"
            length = lengths[name] = draws.randrange(1, 20)
            positions = [position(t) for t in range(length)]
            noted[name], faulty[name] = 0, set()
            for t in range(length):
                if draws.random() < 0.1:
                    changed = draws.choice(list(OF_POSITION.values()))(positions[t])
                    if form.answer([changed], None) is not None:
                        positions[t] = changed
                        faulty[name].add(t)
            ends = [length]
            if form.streams:
                ends = sorted({length, *(draws.randrange(1, length + 1) for _ in range(4))})
            for start, stop in zip([0, *ends], ends):
                begin = 0 if cumulative else start
                answer = form.answer(positions[begin:stop], "finished" if stop == length else None)
                kind = draws.random()
                if kind < 0.1:
                    answer = draws.choice(list(form.faults.values()))(answer)
                    faulty[name].update(range(begin, stop))
                elif kind < 0.2:
                    answer = draws.choice(list(form.unknown.values()))(answer)
                    unknown.setdefault(name, noted[name])
                if kind < 0.1 or kind >= 0.2:
                    noted[name] = stop
                steps.append((number, name, answer))
        # In any order that keeps that of each sequence.
        order = [number for number, _, _ in steps]
        draws.shuffle(order)
        waiting = {number: [(name, answer) for of, name, answer in steps if of == number] for number in order}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in order:
                recorder.add(*waiting[number].pop(0), policy_version=draws.randrange(2))
                if draws.random() < 0.2:
                    self.flush(recorder)
            self.flush(recorder)
        recorder.close()
        for name, length in lengths.items():
            held = self.recorded(name)
            end = unknown.get(name, length)
            for t in range(length):
                if t in held.rows:
                    self.assert_row(t, held.rows[t])
                    self.assertLess(t, end)
                elif t < end:
                    # From a faulty output or, if outputs repeat, from an output that a later one replaced.
                    self.assertIn(t, faulty[name])
                    self.assertIn(t, held.gaps)
            self.assertEqual(held.sealed, None if name in unknown else length)

    def flush(self, recorder):
        try:
            recorder.flush()
        except MalformedOutput:
            pass


if __name__ == "__main__":
    unittest.main()
