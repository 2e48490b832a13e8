"""What the service makes of sequences whose sampled tokens have given log-probs."""

import numpy as np

import sis


def evaluate(client, run_id, behaviour, current, mask, regions):
    """The Evaluation of N sequences, one after the other without padding, with the coefficients of
    importance sampling. behaviour, current: float32 [N, T]. mask: bool [N, T], false behind a
    sequence's end."""
    # Of two tokens: the sampled one, and what it leaves.
    run = client.create_run(run_id, seed=1, vocabulary_size=2, top_k=2)
    lengths = mask.sum(axis=1)
    with client.append(run, sampling=sis.Sampling("processed", temperature=1.0)) as stream:
        for number, length in enumerate(lengths.tolist()):
            sampled = behaviour[number, :length]
            both = np.stack([sampled, np.log(-np.expm1(sampled))], axis=1)
            zeros = np.zeros(length, np.int32)
            ids = np.broadcast_to(np.arange(2), both.shape)
            record = sis.canonical(ids, both, zeros, sampled, 2)
            stream.block(str(number), first_position=0, policy_version=0, **record._asdict())
    slices = [sis.Slice(str(number), 0, length) for number, length in enumerate(lengths.tolist())]
    ratios = current[mask] - behaviour[mask]
    return client.evaluate_reduced(
        run,
        slices,
        draw=0,
        sampled_log_probs=current[mask],
        log_envelopes=np.maximum(ratios, 0),
        covered_masses=np.ones_like(ratios),
        outputs=("coefficients",),
        options=sis.EvaluateOptions(
            algorithm=sis.ImportanceSampling(), advantages=np.ones_like(ratios), trust_regions=regions
        ),
    )


def tensors(seed):
    """behaviour, current [64, 20] and mask of sequences from equal policies to such that differ by
    half a nat a token, and a few tokens by much more."""
    generator = np.random.default_rng(seed)
    behaviour = -generator.gamma(1.0, 1.0, (64, 20)) - 0.01
    size = np.linspace(0, 0.5, 64)[:, None]
    current = np.minimum(behaviour + size * generator.normal(0, 1, behaviour.shape), -1e-3)
    wild = generator.random(behaviour.shape) < 0.005
    current = np.where(wild, behaviour - 25, current)
    mask = np.arange(20) < generator.integers(1, 21, 64)[:, None]
    return behaviour.astype(np.float32), current.astype(np.float32), mask
