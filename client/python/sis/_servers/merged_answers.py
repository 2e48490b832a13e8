"""Merges the answers of several servers about a run into the answer of one."""

from __future__ import annotations

import math
from typing import Dict, Iterable, List, Sequence

from sis.v1 import ratio_service_pb2 as pb
from sis._wire import sums

# Maximum number that a server lists.
_DEVIATIONS = 64


def merged_run(runs: Sequence[pb.Run]) -> pb.Run:
    """Merges the replicas' descriptions of a run. Replicas with an older incarnation have nothing of it."""
    incarnation = max(run.incarnation for run in runs)
    runs = [run for run in runs if run.incarnation == incarnation]
    merged = pb.Run(run_id=runs[0].run_id, incarnation=incarnation, config=runs[0].config)
    merged.policy_version = max(run.policy_version for run in runs)
    labels = {named.policy_version: named for run in runs for named in run.version_labels}
    merged.version_labels.extend(labels[version] for version in sorted(labels))
    for name in ("sequences", "sealed_sequences", "positions", "bytes", "kept_sequences", "unread_sequences"):
        setattr(merged, name, sum(getattr(run, name) for run in runs))
    merged.verdict = max(run.verdict for run in runs)
    # If several replicas break the same rule, keeps the finding of the first.
    findings: Dict[str, pb.Finding] = {}
    for run in runs:
        for found in run.findings:
            findings.setdefault(found.rule, found)
    merged.findings.extend(sorted(findings.values(), key=lambda found: -found.verdict))
    sampled = [run.sampling for run in runs if run.HasField("sampling")]
    if sampled:
        merged.sampling.CopyFrom(sampled[0])
    draws = [run.last_draw for run in runs if run.HasField("last_draw")]
    if draws:
        merged.last_draw = max(draws)
        last = [run.last_totals for run in runs if run.HasField("last_draw") and run.last_draw == merged.last_draw]
        merged.last_totals.CopyFrom(sums.summed(last))
        merged.last_evaluated_at = max(run.last_evaluated_at for run in runs)
    return merged


def merged_steps(parts: Iterable[Sequence[pb.ListStepsResponse.Step]]) -> List[pb.ListStepsResponse.Step]:
    """Merges the steps of several replicas: sums those of one draw. The draw that began last is last."""
    by_draw: Dict[int, List[pb.GetStepResponse]] = {}
    for steps in parts:
        for kept in steps:
            by_draw.setdefault(kept.draw, []).append(kept.step)
    began = {draw: max(step.begun_at for step in steps) for draw, steps in by_draw.items()}
    return [
        pb.ListStepsResponse.Step(draw=draw, step=sums.summed(by_draw[draw]))
        for draw in sorted(by_draw, key=lambda draw: (began[draw], draw))
    ]


def merged_inspections(parts: Iterable[pb.InspectRunResponse]) -> pb.InspectRunResponse:
    """Merges InspectRun of several replicas. A token's counts omit replicas that don't list it, where it doesn't stand
    out."""
    parts = list(parts)
    tokens = sums.merged(part.tokens for part in parts)
    tokens.sort(key=lambda token: (-math.log((token.rejected + 1) / (token.accepted + 1)), token.token_id))
    sequences = [kept for part in parts for kept in part.sequences]
    sequences.sort(key=lambda kept: (kept.sequence.id, kept.sequence.attempt))
    deviations = [found for part in parts for found in part.deviations]
    deviations.sort(key=lambda found: -abs(found.log_ratio))
    return pb.InspectRunResponse(sequences=sequences, tokens=tokens, deviations=deviations[:_DEVIATIONS])
