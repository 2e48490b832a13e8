"""Tables of tests: a line for each test, with what it needs beyond the others."""

def cc_tests(tests, deps = [], size = "small", **kwargs):
    """Declares a cc_test of NAME.cc for each NAME: dependencies beyond `deps` of `tests`."""
    for name, own in tests.items():
        native.cc_test(
            name = name,
            size = size,
            srcs = [name + ".cc"],
            deps = own + deps + ["@sys//:gtest_main"],
            **kwargs
        )

def py_tests(tests, deps = [], size = "small", **kwargs):
    """Declares a py_test of NAME.py for each NAME: dependencies beyond `deps` of `tests`."""
    for name, own in tests.items():
        native.py_test(name = name, size = size, srcs = [name + ".py"], deps = own + deps, **kwargs)
