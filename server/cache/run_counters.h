// What a run counts for the metrics.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "kernels/decide/statistics.h"
#include "server/cache/evaluated.h"
#include "server/cache/missing.h"
#include "server/cache/staleness.h"
#include "server/threads/mutex.h"

namespace sis {

// A CorrectionSums that does not outgrow its numbers.
struct CorrectionTotals {
  double positions = 0;
  double touched = 0;
  double zeroed = 0;
  double weight = 0;
  double weight_squared = 0;
  double abs_log_weight = 0;  // nats
  double gradient_mass = 0;

  CorrectionTotals& operator+=(const CorrectionSums& sums);
  CorrectionTotals& operator+=(const CorrectionTotals& other);
};

struct PrefixTotals {
  double positions = 0;
  double residual_mass = 0;
  double expected_acceptance = 0;

  PrefixTotals& operator+=(const PrefixPointSums& point);
  PrefixTotals& operator+=(const PrefixTotals& other);
};

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
  // Apart, so that neither falls: log M where it is positive, and -log M where it is negative.
  double positive_log_envelope = 0;
  double negative_log_envelope = 0;
  double residual_mass = 0;
  double acceptance_probability = 0;
  double expected_acceptance = 0;
  double k3 = 0;
  double total_variation = 0;
  // Of the scored ones; see Statistics, whose corrections are below.
  StalenessCounts staleness = {};
  BucketCounts<kPowerBounds> abs_log_ratio_counts = {};
  BucketCounts<kPowerBounds> log_envelope_counts = {};
  BucketCounts<kPowerBounds> residual_mass_counts = {};
  BucketCounts<kAcceptanceBounds> acceptance_probability_counts = {};
  std::array<int64_t, kRatioBounds.size()> ratios_beyond = {};
  // "plain", "clipped", "applied", and what is observed, by name.
  std::map<std::string, CorrectionTotals> corrections = {
      {"plain", {}}, {"clipped", {}}, {"applied", {}}};
  std::map<int, PrefixTotals> prefix_curve;  // by k; at most kPrefixPointsCounted
  // Of appends.
  double ingested_positions = 0;
  double ingested_bytes = 0;
  // By MissingReason: positions evaluated, and sequences dropped.
  MissingCounts missing_by_reason = {};
  std::array<double, kMissingReasons.size() + 1> dropped_by_reason = {};
  // Sequences evicted, with no store to read them from, that nobody had read.
  double evicted_unread = 0;
  // By absl::StatusCode.
  std::array<double, 17> refused_entries_by_code = {};

  // A k that comes when there are so many is not counted.
  static constexpr size_t kPrefixPointsCounted = 16;

  RunTotals& operator+=(const RunTotals& other);
};

// The label of runs that have no metrics of their own.
inline constexpr char kOtherRuns[] = "other";

// Of one run id, over all of its incarnations. Thread-safe.
class RunCounters {
 public:
  // `named` if the run's metrics have its id for a label; else they are part of those of others.
  explicit RunCounters(bool named = true) : named_(named) {}

  bool named() const { return named_; }

  // Positions counted for the first time.
  void AddEvaluated(const Evaluated& evaluated) ABSL_LOCKS_EXCLUDED(mutex_);

  // A correction under the name that is its label, and in words that are the same for the same one.
  struct ObservedName {
    std::string name;
    std::string definition;
  };
  static constexpr size_t kMaxObserved = 16;
  // Takes the names, all or none: FailedPrecondition if one means another correction already,
  // ResourceExhausted beyond kMaxObserved.
  absl::Status Observe(std::span<const ObservedName> names) ABSL_LOCKS_EXCLUDED(mutex_);

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
  const bool named_;
  mutable Mutex mutex_;
  RunTotals totals_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> observed_ ABSL_GUARDED_BY(mutex_);  // definitions, by name
};

}  // namespace sis
