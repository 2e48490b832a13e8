#!/usr/bin/env bash
# The PTX files given multiply floats, and never fuse that with an addition (docs/numerics.md, section 1).
set -euo pipefail

if ! grep -hE '\bmul(\.rn)?\.f32\b' "$@" >/dev/null; then
  echo "no multiplication in $*: is this the PTX of the kernels?" >&2
  exit 1
fi
if grep -nE '\b(fma|mad)(\.[a-z]+)*\.f(32|64)\b' "$@"; then
  echo "fused multiply-adds in the lines above" >&2
  exit 1
fi
