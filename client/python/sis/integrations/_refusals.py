"""Refuses settings of a framework under which a training would differ from what it seems to be."""

from __future__ import annotations

from typing import Any, Dict, Tuple

# By the path of a setting: the value that it must have, and the reason.
Needed = Dict[str, Tuple[Any, str]]


def check(settings: Any, needed: Needed, prefix: str = "") -> None:
    """Raises ValueError if a setting has another value than the needed one.

    A setting that is None or absent has the framework's default, which fits. All values that mean "off" are alike.

    Args:
        settings: Object with attributes, or mapping. A path leads through either.
        needed: The values.
        prefix: Beginning of the paths in errors.
    """
    for path, (value, why) in needed.items():
        found = settings
        for name in path.split("."):
            found = found.get(name) if hasattr(found, "get") else getattr(found, name, None)
        if found not in (None, value) and (found or value):
            raise ValueError(f"{prefix}{path} is {found!r}: {why}. Set it to {value!r}")


def check_cispo(arguments: Any) -> None:
    """Raises ValueError if these arguments of TRL or ms-swift limit weights to less than 1 by loss_type "cispo"."""
    limit = arguments.epsilon if arguments.epsilon_high is None else arguments.epsilon_high
    if arguments.loss_type == "cispo" and limit < 1:
        raise ValueError(
            f"epsilon_high is {limit} (epsilon, where it is not set): 'cispo' limits weights to it, "
            "and those of accepted tokens are 1. Set epsilon_high to at least 1"
        )
