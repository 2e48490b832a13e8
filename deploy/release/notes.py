"""Prints the section of CHANGELOG.md on a version, for its release.

    python3 deploy/release/notes.py CHANGELOG.md VERSION
"""

import pathlib
import re
import sys


def notes(changelog: str, version: str) -> str:
    """Returns the section of the version."""
    parts = re.split(r"(?m)^## +(.*)\n", changelog)[1:]
    sections = {
        heading.split()[0].strip("[]").removeprefix("v"): text.strip() + "\n"
        for heading, text in zip(parts[::2], parts[1::2])
    }
    if version in sections:
        return sections[version]
    raise SystemExit(f"the changelog has no section of {version}")


if __name__ == "__main__":
    path, version = sys.argv[1:]
    print(notes(pathlib.Path(path).read_text(), version), end="")
