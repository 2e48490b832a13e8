#include "server/cache/space_saving.h"

#include <algorithm>
#include <utility>

namespace sis {

void SpaceSaving::Add(int32_t token) {
  ++total_;
  if (counters_.empty()) {
    // Reserves more than needed, because frequent insertions and removals would rehash a full
    // table.
    counter_of_.reserve(4 * max_counters_);
    for (uint32_t i = 0; i < max_counters_; ++i) {
      counters_.push_back({0, i, {0, 0}});
      by_count_.push_back(i);
    }
  }
  auto found = counter_of_.find(token);
  if (found == counter_of_.end()) {
    // The new token takes over the lowest counter, whose count becomes its error.
    const uint32_t least = by_count_.front();
    Counter& counter = counters_[least];
    if (counter.value.count > 0) counter_of_.erase(counter.token);
    counter.token = token;
    counter.value.error = counter.value.count;
    found = counter_of_.emplace(token, least).first;
  }
  // Swaps places with the last counter of the same count.
  Counter& counter = counters_[found->second];
  const auto last = std::ranges::upper_bound(
                        by_count_.begin() + counter.place, by_count_.end(), counter.value.count, {},
                        [&](uint32_t other) { return counters_[other].value.count; }) -
                    1;
  counters_[*last].place = counter.place;
  std::swap(by_count_[counter.place], *last);
  counter.place = static_cast<uint32_t>(last - by_count_.begin());
  ++counter.value.count;
}

void SpaceSaving::Clear() {
  total_ = 0;
  counters_ = {};
  by_count_ = {};
  counter_of_ = {};
}

SpaceSaving::Count SpaceSaving::Of(int32_t token) const {
  if (counters_.empty()) return {0, 0};
  if (const auto found = counter_of_.find(token); found != counter_of_.end()) {
    return counters_[found->second].value;
  }
  const uint64_t least = counters_[by_count_.front()].value.count;
  return {least, least};
}

std::vector<int32_t> SpaceSaving::tokens() const {
  std::vector<int32_t> tokens;
  tokens.reserve(counter_of_.size());
  for (const auto& [token, counter] : counter_of_) tokens.push_back(token);
  return tokens;
}

}  // namespace sis
