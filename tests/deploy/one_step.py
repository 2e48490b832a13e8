"""One step of a training, by a client, against servers that somebody else started."""

import numpy as np

import sis
from server.testing.random_records import log_softmax, record_of

VOCABULARY, TOP_K, LENGTH = 32, 4, 100


def logits_of(sequence, policy):
    return np.random.default_rng([sequence, policy]).normal(size=(LENGTH, VOCABULARY)).astype(np.float32)


def check_a_step(test, *, writes, reads):
    """A worker appends at `writes`; a trainer at `reads` finds all of it and gets decisions."""
    names = [f"sequence-{i}" for i in range(8)]
    with sis.Client(writes if len(writes) > 1 else writes[0]) as client:
        run = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        with client.append(run, sampling=sis.Sampling("processed", temperature=1.0), worker="worker") as stream:
            for i, name in enumerate(names):
                log_probs = log_softmax(logits_of(i, 0))
                sampled = np.random.default_rng(i).integers(0, VOCABULARY, LENGTH).astype(np.int32)
                record = record_of(log_probs, sampled, TOP_K)
                stream.block(name, first_position=0, policy_version=0, **record._asdict())
                stream.seal(name, length=LENGTH)
    with sis.Client(reads if len(reads) > 1 else reads[0]) as client:
        run = client.get_run("run").run
        records = client.fetch_top_k(run, names, keep_seconds=60)
        test.assertTrue(records.present.all())
        current = log_softmax(np.concatenate([logits_of(i, 1) for i in range(len(names))]))
        log_probs, sampled_log_probs = sis.gather(records, current)
        evaluation = client.evaluate(run, records, draw=0, log_probs=log_probs, sampled_log_probs=sampled_log_probs)
        totals = evaluation.totals
        test.assertEqual(totals.missing, 0)
        test.assertEqual(totals.accepted + totals.rejected + totals.outside_top_k, LENGTH * len(names))
        test.assertGreater(totals.accepted, 0)
