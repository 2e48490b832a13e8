// What a run counts for the metrics.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "kernels/numerics/sums.h"
#include "server/cache/missing.h"
#include "server/threads/mutex.h"

namespace sis {

// As doubles: what is summed outgrows the fixed point of one step's sums.
struct RunTotals {
  // Of positions evaluated, once per draw.
  double accepted = 0;
  double rejected = 0;
  double outside_top_k = 0;
  double missing = 0;
  double envelope_violations = 0;
  double d = 0;
  double d_sis = 0;
  double log_envelope = 0;
  double residual_mass = 0;
  double acceptance_probability = 0;
  double expected_acceptance = 0;
  double k3 = 0;
  double total_variation = 0;
  // Of appends.
  double ingested_positions = 0;
  double ingested_bytes = 0;
  // By MissingReason: positions evaluated, and sequences dropped.
  std::array<double, kMissingReasons.size() + 1> missing_by_reason = {};
  std::array<double, kMissingReasons.size() + 1> dropped_by_reason = {};
  // Sequences evicted, with no store to read them from, that nobody had read.
  double evicted_unread = 0;
  // By absl::StatusCode.
  std::array<double, 17> refused_entries_by_code = {};
};

// Of one run id, over all of its incarnations. Thread-safe.
class RunCounters {
 public:
  // Positions counted for the first time.
  void AddEvaluated(const Sums& sums, std::span<const Missing> missing)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    WriterLock lock(mutex_);
    totals_.accepted += static_cast<double>(sums.accepted);
    totals_.rejected += static_cast<double>(sums.rejected);
    totals_.outside_top_k += static_cast<double>(sums.outside_top_k);
    totals_.missing += static_cast<double>(sums.missing);
    totals_.envelope_violations += static_cast<double>(sums.envelope_violations);
    totals_.d += FromFixed(sums.d);
    totals_.d_sis += FromFixed(sums.d_sis);
    totals_.log_envelope += FromFixed(sums.log_envelope);
    totals_.residual_mass += FromFixed(sums.residual_mass);
    totals_.acceptance_probability += FromFixed(sums.acceptance_probability);
    totals_.expected_acceptance += FromFixed(sums.expected_acceptance);
    totals_.k3 += FromFixed(sums.k3);
    totals_.total_variation += FromFixed(sums.total_variation);
    for (const Missing& range : missing) {
      totals_.missing_by_reason[static_cast<int>(range.reason)] += range.count;
    }
  }

  void AddIngested(int64_t positions, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    WriterLock lock(mutex_);
    totals_.ingested_positions += static_cast<double>(positions);
    totals_.ingested_bytes += static_cast<double>(bytes);
  }

  void AddRefusedEntry(absl::StatusCode code) ABSL_LOCKS_EXCLUDED(mutex_) {
    WriterLock lock(mutex_);
    ++totals_.refused_entries_by_code.at(static_cast<int>(code));
  }

  void AddDropped(MissingReason reason) ABSL_LOCKS_EXCLUDED(mutex_) {
    WriterLock lock(mutex_);
    ++totals_.dropped_by_reason[static_cast<int>(reason)];
  }

  void AddEvictedUnread() ABSL_LOCKS_EXCLUDED(mutex_) {
    WriterLock lock(mutex_);
    ++totals_.evicted_unread;
  }

  RunTotals totals() const ABSL_LOCKS_EXCLUDED(mutex_) {
    ReaderLock lock(mutex_);
    return totals_;
  }

 private:
  mutable Mutex mutex_;
  RunTotals totals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sis
