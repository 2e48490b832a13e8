"""Python client of the SIS ratio service: stream behaviour log-probs in, get acceptance masks and
ratios back."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from sis._names import *

# Version of the whole project; the wheel takes it from here.
__version__ = "0.2.0"

_MODULES = ("aio", "diagnose", "engines", "export", "integrations", "recomputed", "torch", "tracking")


def __getattr__(name: str) -> Any:
    """Imports all names of sis._names when the first one is used, so that `sisctl --help` imports neither
    grpc nor numpy; and the modules of _MODULES when they are."""
    if name in _MODULES:
        return importlib.import_module(f"sis.{name}")
    # Modules of the package look up other modules here while they are imported.
    if not name.startswith("_") and importlib.util.find_spec(f"sis.{name}") is None:
        names = vars(importlib.import_module("sis._names"))
        if name in names:
            globals().update((key, value) for key, value in names.items() if not key.startswith("_"))
            return names[name]
    raise AttributeError(f"module 'sis' has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted({*globals(), *_MODULES, *vars(importlib.import_module("sis._names"))})
