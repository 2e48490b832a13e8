"""What the installed protoc makes of .proto files under //proto: C++ code, and descriptors for Python."""

def cc_grpc_library(name, srcs, **kwargs):
    """A cc_library of the messages and services of srcs, included by their path below //proto."""
    stems = [s[:-len(".proto")] for s in srcs]
    hdrs = [s + e for s in stems for e in (".pb.h", ".grpc.pb.h")]
    ccs = [s + e for s in stems for e in (".pb.cc", ".grpc.pb.cc")]
    native.genrule(
        name = name + "_protoc",
        srcs = srcs,
        outs = hdrs + ccs,
        cmd = "$(location @sys//:protoc) -Iproto --cpp_out=$(RULEDIR) --grpc_out=generate_mock_code=false:$(RULEDIR)" +
              " --plugin=protoc-gen-grpc=$(location @sys//:grpc_cpp_plugin) $(SRCS)",
        tools = ["@sys//:protoc", "@sys//:grpc_cpp_plugin"],
    )
    native.cc_library(
        name = name,
        srcs = ccs,
        hdrs = hdrs,
        # Generated code parses buffers that come from gRPC, which is not instrumented for
        # ThreadSanitizer.
        copts = ["-w", "-fno-sanitize=thread"],
        includes = ["."],
        deps = ["@sys//:grpc"],
        **kwargs
    )

def descriptor_set(name, proto, out, **kwargs):
    """The descriptors of one proto, which imports no other, for programs that make its messages when they run."""
    native.genrule(
        name = name,
        srcs = [proto],
        outs = [out],
        cmd = "$(location @sys//:protoc) -Iproto --descriptor_set_out=$@ $(SRCS)",
        tools = ["@sys//:protoc"],
        **kwargs
    )
