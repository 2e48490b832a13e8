// Which runs have metrics under their own ids: a bounded number, for each costs Prometheus some
// hundred series.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/cache/run_counters.h"

namespace sis {

// The newest and the busiest: a new run takes the place of the one that has counted nothing for the
// longest time, and one that counts something takes it from one that has counted nothing for
// kQuiet. Not thread-safe.
class NamedRuns {
 public:
  // Longer than the pause between the steps of nearly all training, and than an alert takes to say
  // that a run has stopped: SisIngestStalled looks at 15 minutes, for 5 more, and Prometheus must
  // have seen the series stand still all that time (deploy/prometheus/sis.alerts.yaml).
  static constexpr absl::Duration kQuiet = absl::Minutes(30);

  explicit NamedRuns(int limit) : limit_(limit) {}

  // The counters of a run that was not there. `is_new`: else it was, before this process, and takes
  // no other run's place before it counts something.
  std::shared_ptr<RunCounters> Add(const std::string& run_id, bool is_new, absl::Time now);
  void Remove(const std::string& run_id);
  // To be called now and then: sees who has counted something.
  void Choose(absl::Time now);

  // What runs counted while they had no metrics of their own. Null if there never was such a run.
  const RunCounters* others() const { return has_others_ ? others_.get() : nullptr; }

 private:
  struct Counted {
    std::shared_ptr<RunCounters> counters;
    uint64_t count;   // of its counters, when it was looked at
    absl::Time time;  // when that last changed
  };
  using Place = std::map<std::string, Counted>::iterator;

  void SetNamed(Place run, bool named);
  // The one that counted something first of those with metrics of their own, or last of those
  // without; end() if there is none.
  Place Next(bool named);

  const int limit_;
  int named_ = 0;
  bool has_others_ = false;
  std::shared_ptr<RunCounters> others_ = std::make_shared<RunCounters>();
  std::map<std::string, Counted> runs_;
};

}  // namespace sis
