// The server itself, as GetServer tells it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "server/cache/run_registry.h"
#include "server/rpc/rpc_metrics.h"
#include "server/threads/mutex.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Thread-safe. What it is given must outlive it.
class ServerStatus {
 public:
  // What does not change.
  struct Identity {
    std::string version;
    std::string backend;
    std::string store;
    bool shared_store = false;
  };
  // How often Sample is to be called, and how many samples are kept.
  static constexpr std::chrono::seconds kSamplePeriod{5};
  static constexpr size_t kSamples = 360;

  ServerStatus(const RunRegistry& registry, const RpcMetrics& metrics, Clock clock);

  void SetIdentity(Identity identity) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetReady(bool ready) ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds to the history.
  void Sample() ABSL_LOCKS_EXCLUDED(mutex_);
  v1::GetServerResponse Describe() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Activity = v1::GetServerResponse::Activity;
  // Of all runs that are here, and of those that have gone.
  Activity Now() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RunRegistry& registry_;
  const RpcMetrics& metrics_;
  const Clock clock_;
  const absl::Time started_at_;

  Mutex mutex_;
  Identity identity_ ABSL_GUARDED_BY(mutex_);
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Activity> history_ ABSL_GUARDED_BY(mutex_);
  // Of the runs that were there at the last look: a run's counters would go with it.
  std::map<const RunCounters*, std::shared_ptr<RunCounters>> counted_ ABSL_GUARDED_BY(mutex_);
  Activity departed_ ABSL_GUARDED_BY(mutex_);  // counted by runs that have gone
};

}  // namespace sis
