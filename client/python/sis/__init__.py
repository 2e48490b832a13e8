"""Python client of the SIS ratio service: stream behaviour log-probs in, get acceptance masks and ratios back.

    client = sis.Client("localhost:50051")
    run = client.create_run("my-run", seed=1, vocabulary_size=vocabulary_size, top_k=20)

    # A worker records what its engine sampled. sis.engines.Recorder does the same from outputs of vLLM, SGLang, ...
    record = sis.canonical(ids, log_probs, sampled_ids, sampled_log_probs, run.config.top_k)
    entries = [sis.Block(name, 0, policy_version, *record), sis.Seal(name, len(sampled_ids))]
    sis.append_many(client, run, entries, sampling=sis.Sampling("processed"))

    # The trainer fetches once per rollout, and evaluates before each update.
    records = client.fetch_top_k(run, names, keep_seconds=600)
    log_probs, sampled_log_probs = sis.gather(records, log_softmax)
    found = client.evaluate(run, records, draw=step, log_probs=log_probs, sampled_log_probs=sampled_log_probs)
    # NaN at missing positions, ~records.present: keep the trainer's own log-probs there.
    old_log_probs = np.where(found.accepted, sampled_log_probs, records.sampled_log_probs)
    client.release(run, names)

Calls: help(sis.Client). Trainers: sis.integrations. PyTorch: sis.torch, sis.recomputed. Logs: sis.tracking.
Files: sis.export.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from sis._names import *

# Version of the whole project; the wheel takes it from here.
__version__ = "0.2.0"

# Modules in dir(sis): they need neither PyTorch nor an extra.
_MODULES = ("diagnose", "engines", "export", "integrations", "tracking")


def __getattr__(name: str) -> Any:
    """Imports all names of sis._names when the first one is used, so that `sisctl --help` imports neither
    grpc nor numpy; and modules when they are."""
    if name == "__all__":  # for help(sis)
        return _public()
    if not name.startswith("_"):
        if importlib.util.find_spec(f"sis.{name}") is not None:
            return importlib.import_module(f"sis.{name}")
        names = vars(importlib.import_module("sis._names"))
        if name in names:
            globals().update((key, value) for key, value in names.items() if not key.startswith("_"))
            return names[name]
    raise AttributeError(f"module 'sis' has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted({*globals(), *_MODULES, *_public()})


def _public() -> List[str]:
    return [name for name in vars(importlib.import_module("sis._names")) if not name.startswith("_")]
