"""The flags of sis_server, and sisctl's subcommands with their arguments and options, as the
programs themselves say them."""

import re
import subprocess
from typing import Iterator, List

SERVER = "server/main/sis_server"
SISCTL = "client/cli/sisctl"


def help_of(*command: str) -> str:
    # Help of Abseil's flags exits with 1.
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=30).stdout


def server_flags() -> Iterator[str]:
    own = False
    for line in help_of(SERVER, "--helpfull").splitlines():
        if line.startswith("  Flags from "):
            own = line.startswith("  Flags from server/")
        elif own and (flag := re.match(r"    (--\w+) ", line)):
            yield f"sis_server {flag[1]}"


def section(text: str, heading: str) -> List[str]:
    found = re.search(rf"(?msi)^{heading}:\n(.*?)(?:^\S|\Z)", text)
    return found[1].splitlines() if found else []


def sisctl_flags(*words: str) -> Iterator[str]:
    """Of a subcommand, or of them all."""
    text = help_of(SISCTL, *words, "--help")
    name = " ".join(["sisctl", *words])
    yield name
    usage = re.search(r"(?mi)^Usage: .*\[OPTIONS\](.*)", text) if words else None
    for argument in re.findall(r"[A-Z]+", usage[1]) if usage else ():
        yield f"{name} {argument}"
    for line in section(text, "Options"):
        if flags := re.match(r" {2,4}(--.*?)(?:  |$)", line):
            yield from (f"{name} {flag}" for flag in re.findall(r"--\w+", flags[1]))
    for line in section(text, "Subcommands"):
        if subcommand := re.match(r"  ([a-z]+(?: [a-z]+)*)", line):
            yield from sisctl_flags(*subcommand[1].split())


def lines() -> List[str]:
    return sorted(server_flags()) + sorted(sisctl_flags())
