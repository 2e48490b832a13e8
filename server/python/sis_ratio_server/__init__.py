"""sis_server, as pip installs it."""

import os
import pathlib
import sys

_FOLDER = pathlib.Path(__file__).parent / "bin"


def binary(name: str) -> str:
    """The path of "sis_server"."""
    return str(_FOLDER / name)


def run_server() -> None:
    os.execv(binary("sis_server"), ["sis_server", *sys.argv[1:]])
