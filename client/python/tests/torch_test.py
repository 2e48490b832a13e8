"""Log-probs of tensors at recorded ids, and padded batches."""

import importlib.util
import itertools
import multiprocessing
import tempfile
import unittest
import unittest.mock

import numpy as np

import sis

if importlib.util.find_spec("torch"):
    import torch
    from torch import distributed

    import sis.torch


def setUpModule():
    if not importlib.util.find_spec("torch"):
        raise unittest.SkipTest("PyTorch is not installed")


ROWS, K, V, H = 37, 5, 40, 8


def records(seed=0, rows=ROWS, vocabulary=V):
    """Random sets; the sampled token is one of them in half of the rows, and the last two rows are missing."""
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(vocabulary)[:K] for _ in range(rows)]).astype(np.int32)
    ids[::7, 3:] = -1
    sampled = np.where(np.arange(rows) % 2, ids[:, 1], rng.integers(0, vocabulary, rows)).astype(np.int32)
    ids[-2:], sampled[-2:] = -1, -1
    return sis.TopKRecords.of_rows([sis.Slice("s", length=rows)], ids, sampled)


def logits_of(seed=0, rows=ROWS, vocabulary=V):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, vocabulary)).astype(np.float32) * 4)


def head(seed):
    """Hidden states [ROWS, H], and a head: its weight [V, H] and bias [V]."""
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for shape in ((ROWS, H), (V, H), V)]


def known_of(kept, logits, temperature=1.0):
    """The sampled tokens, and their log-probs."""
    sampled = torch.from_numpy(np.maximum(kept.sampled_ids, 0)).long()
    return sampled, torch.log_softmax(logits / temperature, dim=-1).gather(1, sampled[:, None])[:, 0]


class Configuration:
    """The configuration of a model of transformers."""

    model_type = "some"

    def __init__(self, settings):
        vars(self).update(settings)

    def get_text_config(self):
        return self


def in_float64(kept, logits, temperature=1.0):
    values = torch.log_softmax(logits.double() / temperature, dim=-1).numpy()
    at = np.take_along_axis(values, np.maximum(kept.ids, 0).astype(int), axis=1)
    own = np.take_along_axis(values, np.maximum(kept.sampled_ids, 0)[:, None].astype(int), axis=1)[:, 0]
    return at, own


def one_of_the_group(rank, file, sizes, logits, hidden, weight, answers):
    """Runs one rank of the group, in its own process."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=len(sizes))
    start = sum(sizes[:rank])
    part = slice(start, start + sizes[rank])
    kept = records()
    with unittest.mock.patch.multiple(sis.torch, _CHUNK_ELEMENTS=200, _HEAD_CHUNK=7):
        group = {"vocabulary_start": start, "group": distributed.group.WORLD}
        own = torch.arange(ROWS) % V
        answer = sis.torch.gather(kept, torch.from_numpy(logits[:, part].copy()), own, **group)
        rows = torch.from_numpy(weight[part].copy())
        head = sis.torch.gather_from_head(kept, torch.from_numpy(hidden), rows, own, **group)
        try:
            sis.torch.gather(kept, torch.from_numpy(logits[:, part].copy()), own + V, **group)
            refused = ""
        except ValueError as error:
            refused = str(error)
    answers.put((rank, [values.numpy() for values in (*answer, *head)], refused))
    distributed.destroy_process_group()


class GatherTest(unittest.TestCase):
    def check(self, kept, gathered, logits, temperature=1.0, tolerance=2e-6):
        at, own = in_float64(kept, logits, temperature)
        gathered = sis._gathered.of_all_slots(kept, gathered)
        used = kept.ids >= 0
        self.assertEqual((gathered.log_probs.dtype, gathered.sampled_log_probs.dtype), (torch.float32,) * 2)
        np.testing.assert_allclose(gathered.log_probs.numpy()[used], at[used], rtol=tolerance, atol=tolerance)
        known = kept.sampled_ids >= 0
        sampled = gathered.sampled_log_probs.numpy()
        np.testing.assert_allclose(sampled[known], own[known], rtol=tolerance, atol=tolerance)
        self.assertTrue(np.isnan(sampled[~known]).all())
        # The sampled token and its slot have the same bits.
        rows, slots = np.nonzero(kept.ids == np.where(known, kept.sampled_ids, -2)[:, None])
        self.assertGreater(len(rows), ROWS // 3)
        self.assertEqual(gathered.log_probs.numpy()[rows, slots].tobytes(), sampled[rows].tobytes())

    def without_unnamed(self, kept, gathered):
        """As gather gives it: NaN where no sampled token is recorded."""
        unnamed = torch.from_numpy(kept.sampled_ids < 0)
        own = gathered.sampled_log_probs.masked_fill(unnamed, torch.nan)
        return gathered._replace(sampled_log_probs=own)

    def test_logits(self):
        kept = records()
        for temperature, dtype in itertools.product((1.0, 0.7), (torch.float32, torch.bfloat16, torch.float16)):
            logits = logits_of().to(dtype)
            for elements in (1, 3 * V, 1 << 26):
                with unittest.mock.patch.object(sis.torch, "_CHUNK_ELEMENTS", elements):
                    gathered = sis.torch.gather(kept, logits, temperature=temperature)
                self.check(kept, gathered, logits, temperature)

    def test_excluded_tokens(self):
        kept, logits = records(), logits_of()
        excluded = torch.zeros(V)
        excluded[::3] = -torch.inf
        # With one token at a time the first part is all excluded.
        with unittest.mock.patch.object(sis.torch, "_HEAD_CHUNK", 1):
            of_head = sis.torch.gather_from_head(kept, logits, torch.eye(V), bias=excluded)
        for gathered in (sis.torch.gather(kept, logits + excluded), of_head):
            self.assertTrue((gathered.log_probs.numpy()[kept.used_ids % 3 == 0] == -np.inf).all())
            self.check(kept, gathered, logits + excluded)

    def test_hidden_states_and_head(self):
        kept = records()
        for dtype in (torch.float32, torch.bfloat16):
            hidden, weight, bias = (part.to(dtype) for part in head(1))
            for given in (None, bias):
                logits = torch.nn.functional.linear(hidden, weight, given)
                # A product of other shape may round a logit of bfloat16 the other way.
                tolerance = 2e-5 if dtype == torch.float32 else 0.1
                for width, elements in ((7, 50), (V, 1 << 26), (1, 1)):
                    with unittest.mock.patch.multiple(sis.torch, _HEAD_CHUNK=width, _CHUNK_ELEMENTS=elements):
                        gathered = sis.torch.gather_from_head(kept, hidden, weight, bias=given, temperature=0.9)
                    self.check(kept, gathered, logits, 0.9, tolerance)

    def test_heads_whose_logits_are_scaled_and_capped(self):
        kept = records()
        hidden, weight, _ = head(2)
        logits = hidden @ weight.T
        # As the models' own code makes them: Gemma 2, Cohere, Granite, Falcon-H1.
        for settings, made in (
            ({"final_logit_softcapping": 3.0}, 3 * torch.tanh(logits / 3)),
            ({"logit_scale": 0.0625}, logits * 0.0625),
            ({"logits_scaling": 8.0}, logits / 8),
            ({"lm_head_multiplier": 0.25}, logits * 0.25),
            ({}, logits),
        ):
            transform = sis.torch.LogitTransform.of(Configuration(settings))
            sampled, known = known_of(kept, made, 0.9)
            of_model = {"transform": transform, "temperature": 0.9}
            chunks = unittest.mock.patch.multiple(sis.torch, _HEAD_CHUNK=7, _CHUNK_ELEMENTS=50)
            with self.subTest(settings), chunks:
                whole = sis.torch.gather_from_head(kept, hidden, weight, **of_model)
                rows = sis.torch.gather_from_head_rows(
                    kept, hidden, weight, sampled, known, **of_model
                )
                self.check(kept, whole, made, 0.9, 2e-5)
                self.check(kept, self.without_unnamed(kept, rows), made, 0.9, 2e-5)

    def test_rows_whose_sampled_token_the_current_policy_excludes(self):
        kept = records()
        hidden, weight, bias = head(3)
        bias[::3] = -torch.inf
        logits = hidden @ weight.T + bias
        sampled, known = known_of(kept, logits)
        self.assertGreater((known == -torch.inf).sum(), 5)
        for elements in (50, 1 << 26):
            with unittest.mock.patch.object(sis.torch, "_CHUNK_ELEMENTS", elements):
                gathered = sis.torch.gather_from_head_rows(
                    kept, hidden, weight, sampled, known, bias=bias
                )
            self.assertFalse(gathered.log_probs.isnan().any())
            self.check(kept, self.without_unnamed(kept, gathered), logits, tolerance=2e-5)

    def test_a_rounding_error_of_a_known_log_prob_affects_its_whole_position(self):
        """And never makes the mass exceed 1."""
        kept = records()
        hidden, weight, bias = head(1)
        logits = torch.nn.functional.linear(hidden, weight, bias)
        sampled, known = known_of(kept, logits, 0.9)

        def gathered(known):
            return sis.torch.gather_from_head_rows(
                kept, hidden, weight, sampled, known, bias=bias, temperature=0.9
            )

        exact = gathered(known)
        self.assertEqual(exact.sampled_log_probs.numpy().tobytes(), known.numpy().tobytes())
        self.check(kept, self.without_unnamed(kept, exact), logits, 0.9, 2e-5)
        used = torch.from_numpy(kept.ids >= 0)
        for error in (-0.5, 3.0):
            rounded = gathered(known + error)
            above = [x.log_probs - x.sampled_log_probs[:, None] for x in (rounded, exact)]
            torch.testing.assert_close(above[0][used], above[1][used], rtol=0, atol=1e-5)
            self.assertLess((rounded.log_probs.exp() * used).sum(dim=1).max().item(), 1 + 2**-6)
        self.assertGreater((rounded.sampled_log_probs < known + error).sum(), 10)
        with self.assertRaisesRegex(ValueError, "the head is of 39 tokens"):
            sis.torch.gather_from_head_rows(kept, hidden, weight[:-1], sampled, known)

    def test_gradients_of_rows_are_those_of_all_logits(self):
        kept = records()
        hidden, weight, bias = (part.requires_grad_() for part in head(4))
        transform = sis.torch.LogitTransform(cap=2.0)
        logits = transform(torch.nn.functional.linear(hidden, weight, bias))
        sampled, known = known_of(kept, logits, 0.9)
        used = torch.from_numpy(kept.ids >= 0)
        factors = torch.from_numpy(np.random.default_rng(5).normal(size=used.shape)).float()
        with unittest.mock.patch.object(sis.torch, "_CHUNK_ELEMENTS", 200):
            rows = sis.torch.gather_from_head_rows(
                kept, hidden, weight, sampled, known, bias=bias, transform=transform, temperature=0.9
            )
        whole = sis.torch.log_probs_at(kept, logits, sampled, temperature=0.9)
        made, want = [
            torch.autograd.grad(
                (factors * of.log_probs.masked_fill(~used, 0.0)).sum() + of.sampled_log_probs.sum(),
                (hidden, weight, bias), retain_graph=True,
            )
            for of in (rows, whole._replace(sampled_log_probs=known))
        ]  # fmt: skip
        for got, wanted in zip(made, want):
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)

    def test_all_logits_are_never_there_at_once(self):
        kept, sizes = records(), []
        linear = torch.nn.functional.linear

        def noted(*arguments):
            made = linear(*arguments)
            sizes.append(made.numel())
            return made

        with unittest.mock.patch.multiple(sis.torch, _HEAD_CHUNK=8, _CHUNK_ELEMENTS=80):
            with unittest.mock.patch.object(torch.nn.functional, "linear", noted):
                sis.torch.gather_from_head(kept, torch.ones(ROWS, H), torch.ones(V, H))
        self.assertEqual((max(sizes), sum(sizes)), (80, ROWS * V))

    def test_the_trainers_token_stands_in_where_none_is_recorded(self):
        kept, logits = records(), logits_of()
        own = torch.full((ROWS,), 3)
        gathered = sis.torch.gather(kept, logits, own)
        want = torch.log_softmax(logits, dim=-1)[-2:, 3]
        torch.testing.assert_close(gathered.sampled_log_probs[-2:], want)
        known = kept.sampled_ids >= 0
        without = sis.torch.gather(kept, logits).sampled_log_probs.numpy()
        self.assertEqual(gathered.sampled_log_probs.numpy()[known].tobytes(), without[known].tobytes())

    def test_rows_are_taken_from_more_logits_than_there_are_records(self):
        kept, logits = records(), logits_of(rows=90)
        rows = torch.randperm(90, generator=torch.Generator().manual_seed(1))[:ROWS]
        for elements in (1 << 26, 200):
            with unittest.mock.patch.object(sis.torch, "_CHUNK_ELEMENTS", elements):
                for got, want in zip(sis.torch.gather(kept, logits, rows=rows), sis.torch.gather(kept, logits[rows])):
                    self.assertEqual(got.numpy().tobytes(), want.numpy().tobytes())

    def test_misfitting_arrays_are_refused(self):
        kept, logits = records(), logits_of()
        own = torch.zeros(ROWS, dtype=torch.long)
        own[-1] = V
        for call, message in (
            (lambda: sis.torch.gather(kept, logits[1:]), r"logits has shape \[36, 40\], must be \[37, any\]"),
            (lambda: sis.torch.gather(kept, logits, own), "token 40, position 36: the logits are of 40 tokens"),
            (lambda: sis.torch.gather(kept, logits, own[1:]), r"sampled_ids has shape \[36\]"),
            (lambda: sis.torch.gather(kept, logits, rows=own[1:]), r"rows has shape \[36\], must be \[37\]"),
            (lambda: sis.torch.gather(kept, logits, temperature=0.0), "temperature is 0.0"),
            (lambda: sis.torch.gather_from_head(kept, torch.ones(3, H), torch.ones(V, H)), "hidden has shape"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                call()

    def test_ranks_that_share_the_vocabulary_get_the_same_as_one(self):
        hidden, weight, _ = (part.numpy() for part in head(1))
        logits = hidden @ weight.T
        context = multiprocessing.get_context("spawn")
        answers = context.Queue()
        with tempfile.TemporaryDirectory() as folder:
            arguments = (f"{folder}/group", (29, 11), logits, hidden, weight, answers)
            ranks = [context.Process(target=one_of_the_group, args=(rank, *arguments)) for rank in range(2)]
            for rank in ranks:
                rank.start()
            got = dict((rank, rest) for rank, *rest in (answers.get(timeout=200) for _ in ranks))
            for rank in ranks:
                rank.join()
        for one, other in zip(got[0][0], got[1][0]):
            self.assertEqual(one.tobytes(), other.tobytes())
        kept = records()
        whole = sis.torch.gather(kept, torch.from_numpy(logits), torch.arange(ROWS) % V)
        for values, want in zip(got[0][0], (*whole, *whole)):
            used = kept.ids >= 0 if values.ndim == 2 else slice(None)
            np.testing.assert_allclose(values[used], want.numpy()[used], rtol=2e-5, atol=2e-5)
        for rank in range(2):
            self.assertRegex(got[rank][1], "token 75, position 35: the logits are of 40 tokens")


class PaddedBatchTest(unittest.TestCase):
    def setUp(self):
        # A tool wrote (0, 1); row 1 is empty; row 2 is full.
        self.mask = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
        self.batch = sis.torch.PaddedBatch(["a", "b", ("c", 2), "d"], self.mask)

    def test_slices(self):
        self.assertEqual(
            self.batch.slices,
            (sis.Slice("a", length=3), sis.Slice("c", length=4, attempt=2), sis.Slice("d", length=1)),
        )
        self.assertEqual(len(self.batch), 8)
        self.assertEqual(self.batch.mask.tolist(), [True, False, True, True, True, True, True, True])

    def test_there_and_back(self):
        for shape in ((), (3,)):
            values = torch.arange(16 * 3 if shape else 16).reshape(4, 4, *shape).float().requires_grad_()
            flat = self.batch.flat(values)
            self.assertEqual(flat.shape, (8, *shape))
            self.assertEqual(flat[3].tolist(), values[2, 0].tolist())
            padded = self.batch.padded(flat, -1.0)
            self.assertEqual(padded.shape, values.shape)
            inside = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()
            self.assertTrue(torch.equal(padded[inside], values[inside]))
            self.assertTrue((padded[~inside] == -1).all())
            padded.sum().backward()
            self.assertTrue(torch.equal(values.grad[inside], torch.ones_like(values[inside])))
            self.assertTrue((values.grad[~inside] == 0).all())

    def test_rows_that_begin_later(self):
        mask = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 0]])
        batch = sis.torch.PaddedBatch(["a", "b", "c"], mask, torch.tensor([1, 3, 0]))
        self.assertEqual(batch.slices, (sis.Slice("a", length=3), sis.Slice("c", length=2)))
        self.assertEqual(batch.mask.tolist(), [True, False, True, True, True])
        self.assertEqual(batch.rows.tolist(), [1, 2, 3, 8, 9])
        values = torch.arange(12.0).reshape(3, 4)
        self.assertEqual(batch.flat(values).tolist(), [1, 2, 3, 8, 9])
        self.assertEqual(
            batch.padded(batch.flat(values), -1.0).tolist(), [[-1, 1, 2, 3], [-1] * 4, [8, 9, -1, -1]]
        )

    def test_nothing_at_all(self):
        for width in (0, 3):
            batch = sis.torch.PaddedBatch(["a"], torch.zeros(1, width))
            self.assertEqual((batch.slices, len(batch)), ((), 0))
            self.assertEqual(batch.padded(batch.flat(torch.ones(1, width)), 0.0).tolist(), [[0.0] * width])

    def test_shapes_are_checked(self):
        for call, message in (
            (lambda: sis.torch.PaddedBatch(["a"], self.mask), r"mask has shape \[4, 4\], must be \[1, any\]"),
            (lambda: self.batch.flat(torch.ones(4, 3)), r"must begin with \[4, 4\]"),
            (lambda: self.batch.padded(torch.ones(7), 0), "must begin with 8"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                call()

    def test_tensors_of_results_share_their_memory(self):
        array = np.arange(3)
        made = sis.torch.tensor(array)
        array[1] = 7
        self.assertEqual(made[1], 7)
        frozen = np.frombuffer(bytes(4), np.uint8)
        sis.torch.tensor(frozen)[0] = 1
        self.assertEqual(frozen[0], 0)


if __name__ == "__main__":
    unittest.main()
