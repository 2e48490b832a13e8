// Counters of a run for the metrics.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "kernels/decide/statistics.h"
#include "server/cache/ages.h"
#include "server/cache/evaluated.h"
#include "server/cache/missing.h"
#include "server/cache/step_ledger.h"
#include "server/cache/total.h"
#include "server/threads/mutex.h"

namespace sis {

// In float64, because the totals outgrow the fixed point of one step's sums.
struct RunTotals {
  // Over evaluated positions, once per draw.
  Total<Sums> sums;
  // Sums of log M where it is positive, and of -log M where it is negative. Two sums, because a
  // counter must not fall.
  double positive_log_envelope = 0;
  double negative_log_envelope = 0;
  // Over scored positions; see Statistics.
  std::array<Total<AgeSums>, kAgeClasses.size()> ages = {};
  BucketCounts<kPowerBounds> abs_log_ratio_counts = {};
  BucketCounts<kPowerBounds> log_envelope_counts = {};
  BucketCounts<kPowerBounds> residual_mass_counts = {};
  BucketCounts<kAcceptanceBounds> acceptance_probability_counts = {};
  std::array<int64_t, kRatioBounds.size()> ratios_beyond = {};
  // By name: "plain", "clipped", "applied", and the observed corrections.
  std::map<std::string, Total<CorrectionSums>> corrections = {
      {"plain", {}}, {"clipped", {}}, {"applied", {}}};
  std::map<int, Total<PrefixPointSums>> prefix_curve;  // by k; at most kPrefixPointsCounted
  // Positions that were evaluated but left out of a step's totals.
  StepLedger::Uncounted uncounted;
  double ingested_positions = 0;
  double ingested_slots = 0;
  double ingested_bytes = 0;
  // By MissingReason: evaluated positions, and dropped sequences.
  MissingCounts missing_by_reason = {};
  std::array<double, kMissingReasons.size() + 1> dropped_by_reason = {};
  // Sequences that were evicted, without a store to read them from, before anybody read them.
  double evicted_unread = 0;
  // By absl::StatusCode.
  std::array<double, 17> refused_entries_by_code = {};

  // Maximum number of different k. Points of further k are not counted.
  static constexpr size_t kPrefixPointsCounted = 16;
};

// The label of all runs without metrics of their own.
inline constexpr char kOtherRuns[] = "other";

// The counters of one run id, over all of its incarnations. Thread-safe.
class RunCounters {
 public:
  // While the run is not named, `others`, unless null, count everything too.
  explicit RunCounters(std::shared_ptr<RunCounters> others = nullptr)
      : others_(std::move(others)) {}

  bool named() const { return named_; }
  void set_named(bool named) { named_ = named; }
  // Returns a number that grows whenever something is counted.
  uint64_t count() const { return count_; }

  // Adds positions that are counted for the first time. `others` get no observed corrections,
  // because their names belong to the run.
  void AddEvaluated(const Evaluated& evaluated) ABSL_LOCKS_EXCLUDED(mutex_);

  void AddUncounted(const StepLedger::Uncounted& uncounted) {
    if (uncounted == StepLedger::Uncounted()) return;
    Count([&](RunTotals& totals) { totals.uncounted += uncounted; });
  }

  // The name of an observed correction, which is its label, and a text that identifies the
  // correction.
  struct ObservedName {
    std::string name;
    std::string definition;
  };
  static constexpr size_t kMaxObserved = 16;
  // Registers all names or none. Returns FailedPrecondition if one already has another definition,
  // ResourceExhausted beyond kMaxObserved.
  absl::Status Observe(std::span<const ObservedName> names) ABSL_LOCKS_EXCLUDED(mutex_);

  void AddIngested(int64_t positions, int64_t slots, int64_t bytes) {
    Count([&](RunTotals& totals) {
      totals.ingested_positions += static_cast<double>(positions);
      totals.ingested_slots += static_cast<double>(slots);
      totals.ingested_bytes += static_cast<double>(bytes);
    });
  }
  void AddRefusedEntry(absl::StatusCode code) {
    Count([&](RunTotals& totals) { ++totals.refused_entries_by_code.at(static_cast<int>(code)); });
  }
  void AddDropped(MissingReason reason) {
    Count([&](RunTotals& totals) { ++totals.dropped_by_reason[static_cast<int>(reason)]; });
  }
  void AddEvictedUnread() {
    Count([](RunTotals& totals) { ++totals.evicted_unread; });
  }

  RunTotals totals() const ABSL_LOCKS_EXCLUDED(mutex_) {
    ReaderLock lock(mutex_);
    return totals_;
  }

 private:
  template <typename Add>
  void Count(const Add& add) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      WriterLock lock(mutex_);
      add(totals_);
    }
    ++count_;
    if (others_ != nullptr && !named_) others_->Count(add);
  }

  const std::shared_ptr<RunCounters> others_;
  std::atomic<bool> named_ = false;
  std::atomic<uint64_t> count_ = 0;
  mutable Mutex mutex_;
  RunTotals totals_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> observed_ ABSL_GUARDED_BY(mutex_);  // definitions, by name
};

}  // namespace sis
