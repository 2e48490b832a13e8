#include "server/cache/named_runs.h"

#include <utility>

namespace sis {

std::shared_ptr<RunCounters> NamedRuns::Add(const std::string& run_id, bool is_new,
                                            absl::Time now) {
  auto counters = std::make_shared<RunCounters>(others_);
  const Place run =
      runs_
          .insert_or_assign(run_id, Counted{.counters = counters,
                                            .count = 0,
                                            .time = is_new ? now : absl::InfinitePast()})
          .first;
  // A run with this id would be mistaken for all other runs.
  const bool may_be_named = limit_ > 0 && run_id != kOtherRuns;
  if (may_be_named && named_ == limit_ && is_new) SetNamed(Next(true), false);
  if (may_be_named && named_ < limit_) {
    SetNamed(run, true);
  } else {
    has_others_ = true;
  }
  return counters;
}

void NamedRuns::Remove(const std::string& run_id) {
  const Place run = runs_.find(run_id);
  if (run == runs_.end()) return;
  if (run->second.counters->named()) --named_;
  runs_.erase(run);
}

void NamedRuns::Choose(absl::Time now) {
  for (auto& [id, run] : runs_) {
    const uint64_t count = run.counters->count();
    if (std::exchange(run.count, count) != count) run.time = now;
  }
  for (Place run = Next(false); limit_ > 0 && run != runs_.end(); run = Next(false)) {
    if (named_ == limit_) {
      const Place quiet = Next(true);
      if (now - quiet->second.time < kQuiet || run->second.time <= quiet->second.time) return;
      SetNamed(quiet, false);
    }
    SetNamed(run, true);
  }
}

void NamedRuns::SetNamed(Place run, bool named) {
  run->second.counters->set_named(named);
  named_ += named ? 1 : -1;
  has_others_ = has_others_ || !named;
}

NamedRuns::Place NamedRuns::Next(bool named) {
  Place next = runs_.end();
  for (Place run = runs_.begin(); run != runs_.end(); ++run) {
    if (run->second.counters->named() != named || run->first == kOtherRuns) continue;
    const bool sooner = next == runs_.end() || (named ? run->second.time < next->second.time
                                                      : run->second.time > next->second.time);
    if (sooner) next = run;
  }
  return next;
}

}  // namespace sis
