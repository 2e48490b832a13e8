"""How code is compiled whose floats are defined bit by bit (docs/numerics.md).

A target that compiles such arithmetic, be it from a header, takes these copts: so the bits don't hang on the .bazelrc of
whoever builds it, nor on the machine that it is built for.
"""

# No multiplication is fused with an addition.
EXACT_COPTS = ["-ffp-contract=off"]
