#!/usr/bin/env bash
# The archives given multiply floats, each of them, and never fuse that with an addition (docs/numerics.md, section 1).
set -euo pipefail

if [ "$(uname -m)" != x86_64 ]; then
  echo "knows the instructions of x86-64 only"
  exit 0
fi
for archive in "$@"; do
  case $archive in *.a) ;; *) continue ;; esac
  # Vectors (simd_*.cc) fuse explicitly, where products are exact.
  code=$(objdump -d --no-show-raw-insn "$archive" |
    awk '/file format/ { vectors = $1 ~ /^simd_/ } !vectors')
  if ! grep -qE '\bvmul[sp]s\b' <<<"$code"; then
    echo "no multiplication in $archive: was it built with -mfma?" >&2
    exit 1
  fi
  if grep -E '\bvfn?m(add|sub)' <<<"$code"; then
    echo "fused multiply-adds in $archive: it lacks EXACT_COPTS of bazel/exact.bzl" >&2
    exit 1
  fi
done
