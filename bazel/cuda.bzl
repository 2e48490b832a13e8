"""cuda_library: a cc_library whose srcs are compiled by nvcc."""

load("@cuda//:defs.bzl", "NVCC")

# Machine code for Ampere, Hopper and Blackwell, and PTX for what comes after.
_GENCODE = [
    "-gencode=arch=compute_%s,code=[%s]" % (arch, code)
    for arch, code in [("80", "sm_80"), ("90", "sm_90"), ("100", "sm_100,compute_100")]
]

def _cuda_objects_impl(ctx):
    deps = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    objects = []
    ptx = []
    for src in ctx.files.srcs:
        obj = ctx.actions.declare_file(src.basename + ".o")
        args = ctx.actions.args()
        # nvcc calls the g++ that it finds, whichever compiler builds the rest: no sanitizer sees
        # this code.
        args.add_all([src, "-std=c++20", "-O3", "-Xcompiler=-fPIC", "-fmad=false", "--expt-relaxed-constexpr", "-I."] + ctx.attr.copts)
        args.add_all(deps.defines, before_each = "-D")
        args.add_all(depset(transitive = [deps.includes, deps.quote_includes, deps.system_includes]), before_each = "-I")
        listing = ctx.actions.declare_file(src.basename + ".ptx")
        for output, options in [(obj, ["-c"] + _GENCODE), (listing, ["-ptx", "-arch=compute_80"])]:
            ctx.actions.run(
                executable = NVCC,
                arguments = [args, ctx.actions.args().add_all(options + ["-o", output])],
                inputs = depset(ctx.files.srcs + ctx.files.hdrs, transitive = [deps.headers]),
                outputs = [output],
                mnemonic = "CudaCompile",
                progress_message = "Compiling %s for CUDA" % src.short_path,
                use_default_shell_env = True,
            )
        objects.append(obj)
        ptx.append(listing)
    return [DefaultInfo(files = depset(objects)), OutputGroupInfo(ptx = depset(ptx))]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = True),
        "srcs": attr.label_list(allow_files = [".cu"]),
    },
)

def cuda_library(name, srcs, hdrs = [], copts = [], deps = [], **kwargs):
    """Like cc_library; skipped by wildcards such as //... where there is no CUDA.

    NAME_ptx is what nvcc makes of the srcs before it becomes machine code, for tests to look at.
    """
    compatible = select({
        "@cuda//:enabled": [],
        "//conditions:default": ["@cuda//:toolkit"],
    })
    _cuda_objects(
        name = name + "_objects",
        srcs = srcs,
        hdrs = hdrs,
        copts = copts,
        target_compatible_with = compatible,
        deps = deps + ["@cuda//:cudart"],
    )
    native.cc_library(
        name = name,
        srcs = [name + "_objects"],
        hdrs = hdrs,
        target_compatible_with = compatible,
        deps = deps + ["@cuda//:cudart"],
        **kwargs
    )
    native.filegroup(
        name = name + "_ptx",
        srcs = [name + "_objects"],
        output_group = "ptx",
        tags = ["manual"],
    )
