"""The binaries of the SIS ratio service, as pip installs them."""

import os
import pathlib
import sys

_FOLDER = pathlib.Path(__file__).parent / "bin"


def binary(name: str) -> str:
    """The path of "sis_server" or "sisctl"."""
    return str(_FOLDER / name)


def run_server() -> None:
    os.execv(binary("sis_server"), ["sis_server", *sys.argv[1:]])


def run_sisctl() -> None:
    os.execv(binary("sisctl"), ["sisctl", *sys.argv[1:]])
