"""Writes the folder of this version, tests/compatibility/VERSION, again:

    bazel run //tests/compatibility:make_fixtures

What it stored is written only where there is none yet, or with --stored: before the version is
released, where the formats changed on purpose. Folders of released versions never change.
"""

import os
import pathlib
import subprocess
import sys

from tests.compatibility import flags, python_names

MAKE_STORED = "tests/compatibility/make_stored"


def main() -> None:
    root = pathlib.Path(os.environ["BUILD_WORKSPACE_DIRECTORY"])
    folder = root / "tests/compatibility" / python_names.version()
    folder.mkdir(exist_ok=True)
    if "--stored" in sys.argv or not (folder / "stored_items.base64").exists():
        subprocess.run([MAKE_STORED, folder], check=True)
    for program in (flags, python_names):
        name = program.__name__.rpartition(".")[2]
        (folder / f"{name}.txt").write_text("\n".join(program.lines()) + "\n")
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
