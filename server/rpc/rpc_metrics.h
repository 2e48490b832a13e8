// Counts and times calls by method for Prometheus. docs/metrics.md describes the metrics.
#pragma once

#include <google/protobuf/descriptor.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/threads/steady_now.h"

namespace sis {

// Returns protobuf's description of all methods.
inline const google::protobuf::ServiceDescriptor& Methods() {
  return *google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
      "sis.v1.RatioService");
}

// The method must exist.
inline const google::protobuf::MethodDescriptor& MethodNamed(const std::string& name) {
  return *Methods().FindMethodByName(name);
}

// Thread-safe.
class RpcMetrics {
 public:
  // The registry must outlive the object.
  explicit RpcMetrics(prometheus::Registry& registry);
  RpcMetrics(const RpcMetrics&) = delete;
  RpcMetrics& operator=(const RpcMetrics&) = delete;

  // Return the number of ended RPCs, and of those that ended with an error.
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

// Counts one RPC when it begins, and when it ends.
class RpcTimer {
 public:
  RpcTimer(RpcMetrics& metrics, std::string method)
      : metrics_(&metrics), method_(std::move(method)), start_(SteadyNow()) {
    metrics_->StartRpc(method_);
  }

  void Finish(absl::StatusCode code) const {
    metrics_->CountRpc(method_, code, SteadyNow() - start_);
  }

 private:
  RpcMetrics* metrics_;
  std::string method_;
  absl::Time start_;
};

}  // namespace sis
