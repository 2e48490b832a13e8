#include "server/inspect/space_saving.h"

namespace sis {

void SpaceSaving::Add(int32_t token) {
  ++total_;
  auto found = counts_.find(token);
  if (found != counts_.end()) {
    by_count_.erase({found->second.count, token});
  } else if (counts_.size() < counters_) {
    found = counts_.emplace(token, Count{0, 0}).first;
  } else {
    // The newcomer takes the least counter over, and with it what may be wrong.
    const auto [least, loser] = *by_count_.begin();
    by_count_.erase(by_count_.begin());
    counts_.erase(loser);
    found = counts_.emplace(token, Count{least, least}).first;
  }
  ++found->second.count;
  by_count_.insert({found->second.count, token});
}

void SpaceSaving::Clear() {
  total_ = 0;
  counts_.clear();
  by_count_.clear();
}

SpaceSaving::Count SpaceSaving::Of(int32_t token) const {
  if (const auto found = counts_.find(token); found != counts_.end()) return found->second;
  if (counts_.size() < counters_) return {0, 0};
  const uint64_t least = by_count_.begin()->first;
  return {least, least};
}

std::vector<int32_t> SpaceSaving::tokens() const {
  std::vector<int32_t> tokens;
  tokens.reserve(counts_.size());
  for (const auto& [token, count] : counts_) tokens.push_back(token);
  return tokens;
}

}  // namespace sis
