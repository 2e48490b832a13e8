#!/usr/bin/python3
"""Precompiles the headers that most C++ files of server, client and tests include, for a build by Clang.
Prints the options with which the build uses them. This halves Clang's time for such a file.

    tools/precompile.py FOLDER [BAZEL_OPTION...]

Writes two forms into FOLDER: optimised as that build's libraries are, and as its tests are. Without them the
build is the same, except for files with missing includes, which tools/precompile_test.py finds.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

from compile_commands import bazel

HEADERS = (
    "algorithm", "functional", "map", "memory", "string", "vector",
    "absl/container/flat_hash_map.h", "absl/status/statusor.h", "absl/strings/str_cat.h",
    "absl/synchronization/mutex.h", "absl/time/time.h", "google/protobuf/message.h",
)  # fmt: skip
# And before tests.
TEST_HEADERS = (*HEADERS, "gtest/gtest.h")
# Comes last. Clang lists its path among those that a file depends on, and of a system's header Bazel
# doesn't demand that the target names it.
LAST_HEADER = "/usr/include/grpcpp/grpcpp.h"
# A file that is compiled as libraries are, and one that is as tests.
LIBRARY, TEST = "server/auth/authenticator.cc", "server/auth/auth_test.cc"
# Compiled in a way of its own.
APART = "-server/testing/late_timers.cc"
# Macros of some targets alone; no header here reads them.
SOME_MACROS = ("-DNOMINMAX", "-DHWY_SHARED_DEFINE")


def command_of(action):
    """Its compiler and options, without what belongs to one file."""
    arguments = iter(action["arguments"])
    command = []
    for argument in arguments:
        if argument in ("-MF", "-c", "-o", "-iquote"):
            next(arguments)
        elif argument != "-MD" and not argument.startswith("-frandom-seed") and argument not in SOME_MACROS:
            command.append(argument)
    return command


def forms(sanitized):
    """Returns for each form its name, a file compiled that way, the pattern of such files for --per_file_copt,
    and the prefix of the pattern."""
    rules = pathlib.Path(".bazelrc").read_text()
    if sanitized:
        [optimised] = re.findall(r"^build:sanitizer --per_file_copt=(.*)@-O1$", rules, re.M)
        tests = rf"^(server|client|tests)/.*_test\.cc,-{optimised}"
    else:
        [tests] = re.findall(r"^build --per_file_copt=(.*)@-O0$", rules, re.M)
    yield "library", LIBRARY, r"^(server|client|tests)/.*\.cc,-.*_test\.cc," + APART, HEADERS
    yield "test", TEST, tests.replace(r"\\", "\\"), TEST_HEADERS


def main():
    folder = pathlib.Path(sys.argv[1]).absolute()
    options = sys.argv[2:]
    os.chdir(pathlib.Path(__file__).parents[1])
    folder.mkdir(parents=True, exist_ok=True)
    listed = bazel("aquery", "--noshow_progress", *options, "--output=jsonproto",
                   'mnemonic("CppCompile", //server/auth:all)')
    actions = {a["arguments"][a["arguments"].index("-c") + 1]: a for a in json.loads(listed)["actions"]}
    sanitized = any(option.startswith("--config") for option in options)
    for name, source, files, headers in forms(sanitized):
        output = folder / f"{name}.pch"
        include = [argument for header in headers for argument in ("-include", header)]
        command = command_of(actions[source]) + include
        subprocess.run([*command, "-x", "c++-header", LAST_HEADER, "-o", output], check=True)
        print(f"--per_file_copt={files}@-include-pch,{output}")


if __name__ == "__main__":
    main()
