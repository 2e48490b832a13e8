"""The C++ client as a program, told what to do line by line."""

import os
import pathlib
import subprocess

CPP_CLIENT = pathlib.Path(__file__).absolute().parent / "cpp_client"


class CppClient:
    def __init__(self, **environment):
        self._process = subprocess.Popen(
            CPP_CLIENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1,
            env={**os.environ, **environment},
        )  # fmt: skip

    def do(self, line):
        self._process.stdin.write(line + "\n")
        told = self._process.stdout.readline()
        if not told:
            raise AssertionError(f"{line}: the C++ client ended with {self._process.wait()}")
        return told.rstrip("\n")

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
