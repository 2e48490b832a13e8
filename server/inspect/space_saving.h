// How often tokens occur, in bounded memory: Space-Saving of Metwally, Agrawal and El Abbadi
// ("Efficient Computation of Frequent and Top-k Elements in Data Streams", ICDT 2005).
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace sis {

// Not thread-safe.
class SpaceSaving {
 public:
  explicit SpaceSaving(size_t counters) : counters_(counters) {}

  void Add(int32_t token);
  // Forgets all.
  void Clear();

  // A count is never too low, and too high by at most `error`, which is at most total() / counters.
  struct Count {
    uint64_t count;
    uint64_t error;
  };
  // Of any token, whether it has a counter or not.
  Count Of(int32_t token) const;
  // Those that have a counter: every token that occurred more often than total() / counters does.
  std::vector<int32_t> tokens() const;
  uint64_t total() const { return total_; }

 private:
  const size_t counters_;
  uint64_t total_ = 0;
  absl::flat_hash_map<int32_t, Count> counts_;
  std::set<std::pair<uint64_t, int32_t>> by_count_;  // (count, token)
};

}  // namespace sis
