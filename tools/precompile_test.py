"""A file includes, itself or by a header of ours, what it names of that which tools/precompile.py
includes before it: else it would compile only with tools/precompile.py."""

import functools
import os
import pathlib
import re
import unittest
from typing import FrozenSet, Iterator

import precompile

# The source tree: what Bazel gives a test is a link to it.
ROOT = pathlib.Path(os.path.realpath("tools/precompile.py")).parents[1]
# Header, or the folder of several -> some of what it declares: enough to notice that it is missing.
DECLARES = {
    "algorithm": r"std::(copy(_n)?|equal|fill(_n)?|max|min|(all|any|none)_of|(lower|upper)_bound|ranges::\w+|sort)\(",
    "functional": r"std::(function|greater|hash|less|ref)\b",
    "map": r"std::map\b",
    "memory": r"std::(make_)?(shared|unique)(_ptr)?<",
    "string": r"std::(string|to_string)\b",
    "vector": r"std::vector\b",
    "absl/container/flat_hash_map.h": r"absl::flat_hash_map\b",
    "absl/status/statusor.h": r"absl::StatusOr\b",
    "absl/strings/str_cat.h": r"absl::Str(Append|Cat)\(",
    "absl/synchronization/mutex.h": r"absl::(CondVar|Mutex|MutexLock)\b",
    "absl/time/time.h": r"absl::(Duration|Milliseconds|Seconds|Time)\b",
    "gtest/": r"\b(ASSERT|EXPECT|TEST)_[A-Z]\w+\(|\bTEST\(",
    "google/protobuf/": r"google::protobuf::\w+",
    "grpcpp/": r"\bgrpc::(ByteBuffer|ClientContext|ServerContext|Slice|Status|StatusCode)\b",
}


def sources() -> Iterator[pathlib.Path]:
    for folder in ("client", "server", "tests"):
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in (".cc", ".h"))


@functools.lru_cache(maxsize=None)
def included(path: pathlib.Path) -> FrozenSet[str]:
    """Returns the names of headers that the file and our headers include. Headers from protoc also include
    protobuf's or gRPC's."""
    if not path.is_file():
        return frozenset()
    names = set(re.findall(r'^#include ["<]([^">]+)', path.read_text(), re.MULTILINE))
    if any(name.endswith(".pb.h") for name in names):
        names.add("google/protobuf/message.h")
    if any(name.endswith(".grpc.pb.h") for name in names):
        names.add("grpcpp/grpcpp.h")
    if "gmock/gmock.h" in names:
        names.add("gtest/gtest.h")
    return frozenset(names).union(*(included(ROOT / name) for name in names))


class PrecompileTest(unittest.TestCase):
    def test_each_header_is_known(self) -> None:
        for header in (*precompile.TEST_HEADERS, precompile.LAST_HEADER.removeprefix("/usr/include/")):
            self.assertTrue(any(header.startswith(known) for known in DECLARES), header)

    def test_who_names_what_it_declares_includes_it(self) -> None:
        files = list(sources())
        self.assertGreater(len(files), 250)
        for path in files:
            text = re.sub(r"//.*", "", path.read_text())
            for header, names in DECLARES.items():
                found = re.search(names, text)
                if found and not any(name.startswith(header) for name in included(path)):
                    with self.subTest(str(path.relative_to(ROOT))):
                        self.fail(f"{found[0]} without <{header}>")


if __name__ == "__main__":
    unittest.main()
