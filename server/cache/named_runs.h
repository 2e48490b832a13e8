// Chooses the runs that have metrics under their own ids. Their number is bounded, because each run
// costs Prometheus some hundred series.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/cache/run_counters.h"

namespace sis {

// Chooses the newest and the busiest runs. A new run replaces the run that has counted nothing for
// the longest time. An older run that counts something replaces one that has counted nothing for
// kQuiet. Not thread-safe.
class NamedRuns {
 public:
  // Longer than the pause between steps in nearly all training, and than the alert of a stopped run
  // needs. SisIngestStalled looks at 15 minutes, for 5 more, and Prometheus must have seen the
  // unchanged series all that time (deploy/prometheus/sis.alerts.yaml).
  static constexpr absl::Duration kQuiet = absl::Minutes(30);

  explicit NamedRuns(int limit) : limit_(limit) {}

  // Adds a run, and returns its counters. If not `is_new`, the run existed before this process, and
  // replaces no other run until it counts something.
  std::shared_ptr<RunCounters> Add(const std::string& run_id, bool is_new, absl::Time now);
  void Remove(const std::string& run_id);
  // Replaces quiet runs by runs that have counted something. Must be called periodically.
  void Choose(absl::Time now);

  // Returns the counts of runs while they had no metrics of their own; null if there was none.
  const RunCounters* others() const { return has_others_ ? others_.get() : nullptr; }

 private:
  struct Counted {
    std::shared_ptr<RunCounters> counters;
    uint64_t count;   // RunCounters::count() at the last check
    absl::Time time;  // of the check that found it changed
  };
  using Place = std::map<std::string, Counted>::iterator;

  void SetNamed(Place run, bool named);
  // If `named`, returns the named run that has counted nothing for the longest time; otherwise the
  // unnamed run that counted something last. Returns end() if there is none.
  Place Next(bool named);

  const int limit_;
  int named_ = 0;
  bool has_others_ = false;
  std::shared_ptr<RunCounters> others_ = std::make_shared<RunCounters>();
  std::map<std::string, Counted> runs_;
};

}  // namespace sis
