"""cc_fuzz_test: a libFuzzer entry point that every test run exercises a little, and --config=fuzz
at length."""

def cc_fuzz_test(name, srcs, deps = [], corpus = [], mutations = 20000, size = "small", **kwargs):
    """A cc_test around LLVMFuzzerTestOneInput, which srcs define.

    By default //tests/fuzz:driver replays the corpus, then runs a fixed number of seeded mutations
    of it: the same inputs every time, with any compiler, under any sanitizer. With --config=fuzz
    (clang) the target is a libFuzzer binary instead, to be run by hand with libFuzzer's own
    arguments; see CONTRIBUTING.md.

    Args:
      name: of the test.
      srcs: sources; one defines LLVMFuzzerTestOneInput, which aborts, crashes or trips a sanitizer on a failure.
      deps: as in cc_test.
      corpus: files, each one input. Without any the mutations start from the empty input.
      mutations: how many mutated inputs the driver runs.
      size: as in cc_test.
      **kwargs: passed on to cc_test.
    """
    native.cc_test(
        name = name,
        srcs = srcs,
        args = select({
            "//tests/fuzz:libfuzzer": ["-runs=0"],
            "//conditions:default": [str(mutations)],
        }) + ["$(rootpaths %s)" % c for c in corpus],
        data = corpus,
        deps = deps + select({
            "//tests/fuzz:libfuzzer": [],
            "//conditions:default": ["//tests/fuzz:driver"],
        }),
        size = size,
        **kwargs
    )
