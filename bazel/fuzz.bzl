"""cc_fuzz_test: a libFuzzer entry point that every test run exercises a little, and tools/fuzz at
length."""

def cc_fuzz_test(name, srcs, deps = [], corpus = [], mutations = 20000, size = "small", tags = [], **kwargs):
    """A cc_test around LLVMFuzzerTestOneInput, which srcs define.

    By default //tests/fuzz:driver replays the corpus, then runs a fixed number of seeded mutations
    of it: the same inputs every time, with any compiler. With --config=asan, for which clang
    compiles, it is libFuzzer instead, from a fixed seed: what turns a test red is a change, and not
    chance, and a pass may be cached. tools/fuzz runs it at length, from another seed each time.
    Besides `corpus` there is what libFuzzer found and tools/fuzz --keep kept, in the package's
    corpus/NAME.base64, an input a line.

    Args:
      name: of the test.
      srcs: sources; one defines LLVMFuzzerTestOneInput, which aborts, crashes or trips a sanitizer on a failure.
      deps: as in cc_test.
      corpus: files, each one input. Without any the search starts from the empty input.
      mutations: how many mutated inputs the driver runs.
      size: as in cc_test.
      tags: as in cc_test.
      **kwargs: passed on to cc_test.
    """
    kept = native.glob(["corpus/%s.base64" % name])
    native.cc_test(
        name = name,
        srcs = srcs,
        args = select({
            "//tests/fuzz:libfuzzer": [
                "-runs=50000",
                "-max_total_time=10",
                "-timeout=60",
                "-rss_limit_mb=4096",
                "-seed=20240229",
                "-print_final_stats=1",
            ],
            "//conditions:default": [str(mutations)],
        }) + ["$(rootpaths %s)" % file for file in corpus + kept],
        data = corpus + kept,
        linkopts = select({
            "//tests/fuzz:libfuzzer": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        deps = deps + select({
            "//tests/fuzz:libfuzzer": ["//tests/fuzz:libfuzzer_arguments"],
            "//conditions:default": ["//tests/fuzz:driver"],
        }),
        size = size,
        tags = tags + ["fuzz", "one_thread"],
        **kwargs
    )
