"""What the installed protoc makes of .proto files under //proto: C++ code, and descriptors for Python."""

def cc_grpc_library(name, srcs, service, **kwargs):
    """A cc_library of the messages of srcs and the service in one of them, included by their path below //proto."""
    outs = [s[:-len("proto")] + e for s in srcs for e in ("pb.h", "pb.cc")]
    outs += [service[:-len("proto")] + e for e in ("grpc.pb.h", "grpc.pb.cc")]
    native.genrule(
        name = name + "_protoc",
        srcs = srcs,
        outs = outs,
        cmd = "$(location @sys//:protoc) -Iproto --cpp_out=$(RULEDIR) $(SRCS) && " +
              "$(location @sys//:protoc) -Iproto --grpc_out=generate_mock_code=false:$(RULEDIR)" +
              " --plugin=protoc-gen-grpc=$(location @sys//:grpc_cpp_plugin) $(location %s)" % service,
        tools = ["@sys//:protoc", "@sys//:grpc_cpp_plugin"],
    )
    native.cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        # Generated code parses buffers that come from gRPC, which is not instrumented for
        # ThreadSanitizer; and the other checks would double what compiling it takes.
        copts = ["-w", "-fno-sanitize=address,thread,undefined"],
        includes = ["."],
        # Nobody calls what is made of a file without messages, and it has the service's descriptor.
        alwayslink = True,
        deps = ["@sys//:grpc"],
        **kwargs
    )

def descriptor_set(name, srcs, out, **kwargs):
    """The descriptors of srcs, for programs that make messages when they run: each after those that it imports."""
    native.genrule(
        name = name,
        srcs = srcs,
        outs = [out],
        cmd = "$(location @sys//:protoc) -Iproto --descriptor_set_out=$@ $(SRCS)",
        tools = ["@sys//:protoc"],
        **kwargs
    )
