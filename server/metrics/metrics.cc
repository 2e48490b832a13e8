#include "server/metrics/metrics.h"

#include <google/protobuf/descriptor.h>

#include <iterator>
#include <map>

namespace sis {
namespace {

prometheus::Family<prometheus::Counter>& CounterFamily(prometheus::Registry& registry,
                                                       const std::string& name,
                                                       const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

prometheus::Family<prometheus::Histogram>& HistogramFamily(prometheus::Registry& registry,
                                                           const std::string& name,
                                                           const std::string& help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

// From a control call to a whole step.
const prometheus::Histogram::BucketBoundaries kSecondsBuckets = {
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10};

using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

const ServiceDescriptor& Service() {
  return *google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
      "sis.v1.RatioService");
}

const char* TypeOf(const MethodDescriptor& method) {
  if (method.client_streaming()) return "bidi_stream";
  return method.server_streaming() ? "server_stream" : "unary";
}

// As the gRPC libraries' own metrics have them.
std::map<std::string, std::string> LabelsOf(const std::string& name) {
  return {{"grpc_type", TypeOf(*Service().FindMethodByName(name))},
          {"grpc_service", Service().full_name()},
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

Metrics::Metrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      rpcs_started_(CounterFamily(*registry_, "grpc_server_started_total", "RPCs started.")),
      rpcs_(CounterFamily(*registry_, "grpc_server_handled_total", "RPCs ended, by status code.")),
      rpc_seconds_(HistogramFamily(*registry_, "grpc_server_handling_seconds",
                                   "Time from the start of an RPC to its end.")),
      store_operations_(CounterFamily(*registry_, "sis_store_operations_total",
                                      "Calls of the store, by operation and result.")),
      store_seconds_(HistogramFamily(*registry_, "sis_store_seconds",
                                     "Time of a call of the store, by operation.")),
      store_written_bytes_(CounterFamily(*registry_, "sis_store_written_bytes_total",
                                         "Bytes of records given to the store.")
                               .Add({})),
      store_read_bytes_(CounterFamily(*registry_, "sis_store_read_bytes_total",
                                      "Bytes of records that came from the store.")
                            .Add({})) {
  // From 0 on, so that the first one of a kind is seen as an increase.
  for (int i = 0; i < Service().method_count(); ++i) {
    const std::string& method = Service().method(i)->name();
    rpcs_started_.Add(LabelsOf(method));
    rpcs_.Add(LabelsOf(method, absl::StatusCode::kOk));
    rpc_seconds_.Add(LabelsOf(method), kSecondsBuckets);
  }
}

void Metrics::StartRpc(const std::string& method) {
  rpcs_started_.Add(LabelsOf(method)).Increment();
}

void Metrics::CountRpc(const std::string& method, absl::StatusCode code, absl::Duration duration) {
  ++rpcs_ended_;
  if (code != absl::StatusCode::kOk) ++rpcs_failed_;
  rpcs_.Add(LabelsOf(method, code)).Increment();
  rpc_seconds_.Add(LabelsOf(method), kSecondsBuckets).Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::CountStoreOperation(const std::string& operation, absl::StatusCode code,
                                  absl::Duration duration) {
  store_operations_.Add({{"operation", operation}, {"result", absl::StatusCodeToString(code)}})
      .Increment();
  store_seconds_.Add({{"operation", operation}}, kSecondsBuckets)
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::AddStoreBytes(int64_t written, int64_t read) {
  store_written_bytes_.Increment(static_cast<double>(written));
  store_read_bytes_.Increment(static_cast<double>(read));
}

}  // namespace sis
