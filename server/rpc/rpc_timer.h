// Counts one RPC in the metrics when it begins, and when it ends.
#pragma once

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "server/rpc/rpc_metrics.h"
#include "server/threads/steady_now.h"

namespace sis {

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
