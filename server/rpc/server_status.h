// Status and history of the server for GetServer.
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

// Thread-safe. All arguments must outlive the object.
class ServerStatus {
 public:
  // Server properties that are fixed at startup.
  struct Identity {
    std::string version;
    std::string backend;
    std::string store;
    bool shared_store = false;
  };
  // Period at which Sample must be called, and number of samples kept.
  static constexpr std::chrono::seconds kSamplePeriod{5};
  static constexpr size_t kSamples = 360;

  ServerStatus(const RunRegistry& registry, const RpcMetrics& metrics, Clock clock);

  void SetIdentity(Identity identity) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetReady(bool ready) ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds a sample to the history.
  void Sample() ABSL_LOCKS_EXCLUDED(mutex_);
  v1::GetServerResponse Describe() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Activity = v1::GetServerResponse::Activity;
  // Returns the activity of all runs, including deleted ones.
  Activity Now() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RunRegistry& registry_;
  const RpcMetrics& metrics_;
  const Clock clock_;
  const absl::Time started_at_;

  Mutex mutex_;
  Identity identity_ ABSL_GUARDED_BY(mutex_);
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Activity> history_ ABSL_GUARDED_BY(mutex_);
  // The counters of the runs at the last sample. Keeps the counters of runs that are deleted since.
  std::map<const RunCounters*, std::shared_ptr<RunCounters>> counted_ ABSL_GUARDED_BY(mutex_);
  Activity departed_ ABSL_GUARDED_BY(mutex_);  // of deleted runs
};

}  // namespace sis
