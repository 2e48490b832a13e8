// Counts and times of RPCs, for Prometheus. docs/metrics.md says what each means.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sis {

// Thread-safe.
class RpcMetrics {
 public:
  // The registry must outlive the object.
  explicit RpcMetrics(prometheus::Registry& registry);
  RpcMetrics(const RpcMetrics&) = delete;
  RpcMetrics& operator=(const RpcMetrics&) = delete;

  // RPCs that have ended, and those of them that ended with an error.
  int64_t rpcs() const { return rpcs_ended_; }
  int64_t failed_rpcs() const { return rpcs_failed_; }

  // A method is named as in proto/sis/v1/ratio_service.proto.
  void StartRpc(const std::string& method);
  void CountRpc(const std::string& method, absl::StatusCode code, absl::Duration duration);

 private:
  prometheus::Family<prometheus::Counter>& rpcs_started_;
  prometheus::Family<prometheus::Counter>& rpcs_;
  prometheus::Family<prometheus::Histogram>& rpc_seconds_;
  std::atomic<int64_t> rpcs_ended_ = 0;
  std::atomic<int64_t> rpcs_failed_ = 0;
};

}  // namespace sis
