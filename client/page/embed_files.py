"""embed_files.py FILE...: prints page_files.cc, which holds the files' bytes."""

import hashlib
import pathlib
import sys

# Of one string literal; adjacent ones are one.
_LITERAL_BYTES = 4096

_SOURCE = """#include "client/page/page_files.h"

namespace sis {{

std::span<const PageFile> PageFiles() {{
  static constexpr PageFile kFiles[] = {{
{files}
  }};
  return kFiles;
}}

}}  // namespace sis
"""


def _character(byte: int) -> str:
    if 32 <= byte < 127 and chr(byte) not in '"\\?':
        return chr(byte)
    return f"\\{byte:03o}"


def _literals(data: bytes) -> str:
    parts = [data[i : i + _LITERAL_BYTES] for i in range(0, len(data), _LITERAL_BYTES)]
    return "\n".join('"' + "".join(map(_character, part)) + '"' for part in parts or [b""])


def _file(path: pathlib.Path) -> str:
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()[:16]
    return f'{{"{path.name}", {{{_literals(data)}, {len(data)}}}, "{digest}"}},'


def main() -> None:
    paths = sorted(map(pathlib.Path, sys.argv[1:]), key=lambda path: path.name)
    print(_SOURCE.format(files="\n".join(map(_file, paths))), end="")


if __name__ == "__main__":
    main()
