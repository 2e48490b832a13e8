#include "server/rpc/rpc_metrics.h"

#include <iterator>
#include <map>

namespace sis {
namespace {

// From a control call to a whole step, in seconds.
const prometheus::Histogram::BucketBoundaries kSecondsBuckets = {
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10};

const char* TypeOf(const google::protobuf::MethodDescriptor& method) {
  if (method.client_streaming()) return "bidi_stream";
  return method.server_streaming() ? "server_stream" : "unary";
}

// Returns the labels that gRPC's own metrics use.
std::map<std::string, std::string> LabelsOf(const std::string& name) {
  return {{"grpc_type", TypeOf(MethodNamed(name))},
          {"grpc_service", Methods().full_name()},
          {"grpc_method", name}};
}

const char* CodeName(absl::StatusCode code) {
  static constexpr const char* kNames[] = {
      "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
      "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
      "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
      "DataLoss", "Unauthenticated"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "Unknown";
}

std::map<std::string, std::string> LabelsOf(const std::string& method, absl::StatusCode code) {
  std::map<std::string, std::string> labels = LabelsOf(method);
  labels["grpc_code"] = CodeName(code);
  return labels;
}

}  // namespace

RpcMetrics::RpcMetrics(prometheus::Registry& registry)
    : rpcs_started_(prometheus::BuildCounter()
                        .Name("grpc_server_started_total")
                        .Help("RPCs started.")
                        .Register(registry)),
      rpcs_(prometheus::BuildCounter()
                .Name("grpc_server_handled_total")
                .Help("RPCs ended, by status code.")
                .Register(registry)),
      rpc_seconds_(prometheus::BuildHistogram()
                       .Name("grpc_server_handling_seconds")
                       .Help("Time from the start of an RPC to its end.")
                       .Register(registry)) {
  // Exports zeros from the start, so that Prometheus sees the first count as an increase.
  for (int i = 0; i < Methods().method_count(); ++i) {
    const std::string& method = Methods().method(i)->name();
    rpcs_started_.Add(LabelsOf(method));
    rpcs_.Add(LabelsOf(method, absl::StatusCode::kOk));
    rpc_seconds_.Add(LabelsOf(method), kSecondsBuckets);
  }
}

void RpcMetrics::StartRpc(const std::string& method) {
  rpcs_started_.Add(LabelsOf(method)).Increment();
}

void RpcMetrics::CountRpc(const std::string& method, absl::StatusCode code,
                          absl::Duration duration) {
  ++rpcs_ended_;
  if (code != absl::StatusCode::kOk) ++rpcs_failed_;
  rpcs_.Add(LabelsOf(method, code)).Increment();
  rpc_seconds_.Add(LabelsOf(method), kSecondsBuckets).Observe(absl::ToDoubleSeconds(duration));
}

}  // namespace sis
