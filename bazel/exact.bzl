"""How code is compiled whose floats are defined bit by bit (docs/numerics.md).

A target that compiles such arithmetic, be it from a header, takes these copts: so the bits don't
hang on the .bazelrc of whoever builds it, nor on the machine that it is built for.
"""

# No multiplication is fused with an addition.
EXACT_COPTS = ["-ffp-contract=off"]

def _fma_impl(_settings, _attr):
    # Without headers that tools/precompile.py parsed with other flags.
    return {
        "//command_line_option:copt": ["-mfma", "-ffp-contract=fast"],
        "//command_line_option:per_file_copt": [],
    }

_fma = transition(
    implementation = _fma_impl,
    inputs = [],
    outputs = ["//command_line_option:copt", "//command_line_option:per_file_copt"],
)

def _built_with_fma_impl(ctx):
    files = depset(transitive = [target[DefaultInfo].files for target in ctx.attr.targets])
    return [DefaultInfo(files = files, runfiles = ctx.runfiles(transitive_files = files))]

# The targets' own archives, built by somebody whose flags ask for fused multiply-adds.
built_with_fma = rule(
    implementation = _built_with_fma_impl,
    attrs = {
        "targets": attr.label_list(cfg = _fma),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
)
