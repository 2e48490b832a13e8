"""Compares installed versions with the versions that a plug-in was tested with."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import pkgutil
import warnings
from typing import Dict, List, Optional

# Versions that plug-ins and adapters were tested with, by environment of tools/rl-environment. tools/rl-test
# writes them.
TESTED: Dict[str, Dict[str, str]] = json.loads(pkgutil.get_data("sis", "tested_versions.json") or "")


@functools.lru_cache(maxsize=None)
def warn_unless_tested(environment: str, package: str, *others: str) -> None:
    """One RuntimeWarning in this process if the package, or one of the others that stand for it, is of
    another release, major and minor, than was run."""
    tested = TESTED[environment][package]
    for name in (package, *others):
        installed = _installed(name)
        if installed is not None and _release(installed) != _release(tested):
            warnings.warn(
                f"{name} {installed} is installed; sis was run with {package} {tested}, and with no other release "
                "(docs/frameworks.md): compare what it logs before you rely on it",
                RuntimeWarning,
                stacklevel=3,
            )


def _installed(package: str) -> Optional[str]:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> List[str]:
    return version.split("+")[0].split(".")[:2]
