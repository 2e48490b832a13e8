"""A rollout worker: streams the behaviour policy's top-K log-probs while it generates. Usage:
worker.py HOST:PORT"""

import sys

import numpy as np

import sis

rng = np.random.default_rng(1)
with sis.Client(sys.argv[1]) as client:
    run = client.create_run("example", seed=1, vocabulary_size=64, top_k=10)
    with client.append(run, sampling=sis.Sampling("processed", temperature=1.0), worker="worker-0") as stream:
        logits = rng.normal(size=(100, run.config.vocabulary_size))  # your engine's, one row per position
        log_softmax = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        sampled_ids = (log_softmax + rng.gumbel(size=logits.shape)).argmax(axis=1)
        ids = np.broadcast_to(np.arange(run.config.vocabulary_size), logits.shape)
        sampled_log_probs = np.take_along_axis(log_softmax, sampled_ids[:, None], axis=1)[:, 0]
        record = sis.canonical(ids, log_softmax, sampled_ids, sampled_log_probs, run.config.top_k)
        stream.block("prompt-0/response-0", first_position=0, policy_version=0, **record._asdict())
        stream.seal("prompt-0/response-0", length=len(sampled_ids))
