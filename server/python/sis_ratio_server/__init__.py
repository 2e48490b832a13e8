"""The binary of the SIS ratio service, as pip installs it."""

import os
import pathlib
import sys

BINARY = str(pathlib.Path(__file__).parent / "bin/sis_server")


def run_server() -> None:
    os.execv(BINARY, ["sis_server", *sys.argv[1:]])
