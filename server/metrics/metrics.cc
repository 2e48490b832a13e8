#include "server/metrics/metrics.h"

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

}  // namespace

Metrics::Metrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      rpcs_(CounterFamily(*registry_, "sis_rpcs_total", "RPCs finished, by method and code.")),
      rpc_seconds_(HistogramFamily(*registry_, "sis_rpc_seconds",
                                   "Time from the start of an RPC to its end, by method.")),
      store_operations_(CounterFamily(*registry_, "sis_store_operations_total",
                                      "Calls of the store, by operation and result.")),
      store_seconds_(HistogramFamily(*registry_, "sis_store_seconds",
                                     "Time of a call of the store, by operation.")),
      store_written_bytes_(CounterFamily(*registry_, "sis_store_written_bytes_total",
                                         "Bytes of records given to the store.")
                               .Add({})),
      store_read_bytes_(CounterFamily(*registry_, "sis_store_read_bytes_total",
                                      "Bytes of records that came from the store.")
                            .Add({})) {}

void Metrics::CountRpc(const std::string& method, absl::StatusCode code, absl::Duration duration) {
  ++rpcs_ended_;
  if (code != absl::StatusCode::kOk) ++rpcs_failed_;
  rpcs_.Add({{"method", method}, {"code", absl::StatusCodeToString(code)}}).Increment();
  rpc_seconds_.Add({{"method", method}}, kSecondsBuckets).Observe(absl::ToDoubleSeconds(duration));
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
