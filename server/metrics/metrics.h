// Counts of RPCs and of calls of the store, for Prometheus. docs/metrics.md says what each means.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sis {

// Thread-safe.
class Metrics {
 public:
  Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }

  // A method is named as in proto/sis/v1/ratio_service.proto.
  void StartRpc(const std::string& method);
  void CountRpc(const std::string& method, absl::StatusCode code, absl::Duration duration);
  void CountStoreOperation(const std::string& operation, absl::StatusCode code,
                           absl::Duration duration);
  void AddStoreBytes(int64_t written, int64_t read);

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  prometheus::Family<prometheus::Counter>& rpcs_started_;
  prometheus::Family<prometheus::Counter>& rpcs_;
  prometheus::Family<prometheus::Histogram>& rpc_seconds_;
  prometheus::Family<prometheus::Counter>& store_operations_;
  prometheus::Family<prometheus::Histogram>& store_seconds_;
  prometheus::Counter& store_written_bytes_;
  prometheus::Counter& store_read_bytes_;
};

}  // namespace sis
