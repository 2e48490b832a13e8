"""From what engines return to records: one module per engine, which is imported by its name, and a
recorder that streams while they generate.

    import sis.engines.vllm

    adapter = sis.engines.vllm.VllmAdapter(llm, sampling_params)
    with sis.engines.Recorder(client, run, adapter, policy_version=step) as recorder:
        for name, output in zip(names, llm.generate(prompts, sampling_params)):
            recorder.add(name, output)
"""

from sis.engines._adapter import Adapter, Columns, MalformedOutput, Piece, Told, VersionRange, entries_of
from sis.engines._recorder import Recorder

__all__ = ["Adapter", "Columns", "MalformedOutput", "Piece", "Recorder", "Told", "VersionRange", "entries_of"]
