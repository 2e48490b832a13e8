"""A trainer: reads the recorded sets, sends the current policy's values, substitutes. Usage:
trainer.py HOST:PORT"""

import sys

import numpy as np

import sis

rng = np.random.default_rng(2)
with sis.Client(sys.argv[1]) as client:
    run = client.get_run("example").run
    records = client.fetch_top_k(run, ["prompt-0/response-0"], keep_seconds=60)
    for step in range(4):
        logits = rng.normal(size=(len(records), run.config.vocabulary_size))  # your model's, one row per position
        log_softmax = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        log_probs, sampled_log_probs = sis.gather(records, log_softmax)
        evaluation = client.evaluate(
            run, records, draw=step, log_probs=log_probs, sampled_log_probs=sampled_log_probs
        )
        old_log_probs = np.where(evaluation.accepted, sampled_log_probs, records.sampled_log_probs)
        print(f"step {step}: accepted {evaluation.totals.accept_rate:.1%},", end=" ")
        print(f"D {evaluation.totals.d:.1f}, D_SIS {evaluation.totals.d_sis:.1f} nats")
    client.release(run, ["prompt-0/response-0"])
