"""Selective importance sampling in trainers: one module per framework, imported when it is first used.

    import sis

    sis.integrations.trl          # TRL; dir(sis.integrations) has the others

All take their settings as one `SisConfig`. `OldLogProbs` is what the small modules share, for a framework of your own.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from sis.integrations._config import SisConfig as SisConfig
    from sis.integrations._old_log_probs import OldLogProbs as OldLogProbs

__all__ = ["OldLogProbs", "SisConfig"]
_FRAMEWORKS = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]


def __getattr__(name: str) -> Any:
    if name in _FRAMEWORKS:
        return importlib.import_module(f"sis.integrations.{name}")
    if name in __all__:
        module = "_config" if name == "SisConfig" else "_old_log_probs"
        return getattr(importlib.import_module(f"sis.integrations.{module}"), name)
    raise AttributeError(f"module 'sis.integrations' has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted([*globals(), *__all__, *_FRAMEWORKS])
