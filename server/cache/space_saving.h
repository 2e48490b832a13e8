// Counts token occurrences in bounded memory: Space-Saving of Metwally, Agrawal and El Abbadi
// ("Efficient Computation of Frequent and Top-k Elements in Data Streams", ICDT 2005).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace sis {

// Not thread-safe.
class SpaceSaving {
 public:
  explicit SpaceSaving(size_t counters) : max_counters_(counters) {}

  void Add(int32_t token);
  void Clear();

  // A count is never too low, and too high by at most `error`, which is at most total() / counters.
  struct Count {
    uint64_t count;
    uint64_t error;
  };
  // Returns the count of any token, with or without a counter.
  Count Of(int32_t token) const;
  // Returns the tokens with a counter. They include every token that occurred more often than
  // total() / counters.
  std::vector<int32_t> tokens() const;
  uint64_t total() const { return total_; }

 private:
  struct Counter {
    int32_t token;   // if its count is not 0
    uint32_t place;  // in by_count_
    Count value;
  };

  const size_t max_counters_;
  uint64_t total_ = 0;
  // Allocated at the first token.
  std::vector<Counter> counters_;
  std::vector<uint32_t> by_count_;  // indexes of counters, lowest count first
  absl::flat_hash_map<int32_t, uint32_t> counter_of_;
};

}  // namespace sis
