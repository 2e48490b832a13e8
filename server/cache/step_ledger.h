// Totals per draw, each position counted once however often it is evaluated.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "kernels/numerics/sums.h"
#include "server/threads/mutex.h"

namespace sis {

// Thread-safe.
class StepLedger {
 public:
  // Keeps the `kept` largest draws, or fewer, if together they hold more than kMaxRanges separate
  // ranges.
  explicit StepLedger(int kept) : kept_(kept) {}

  // A half-open range of positions.
  struct Range {
    uint32_t first;
    uint32_t end;
    friend bool operator==(const Range&, const Range&) = default;
  };

  // Marks [range) of the sequence as counted for the draw, and returns the parts that were not.
  // None for a draw that is older than those kept, or if the largest draw alone holds kMaxRanges.
  std::vector<Range> Claim(uint64_t draw, uint64_t sequence_key, Range range)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds what was claimed to the step's totals.
  void Add(uint64_t draw, const Sums& sums) ABSL_LOCKS_EXCLUDED(mutex_);

  struct Step {
    Sums sums;
    int64_t sequences;
  };
  std::optional<Step> Find(uint64_t draw) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<uint64_t> last_draw() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Bounds the memory: a sequence whose positions are all evaluated is one range.
  static constexpr int64_t kMaxRanges = 1 << 20;

 private:
  struct OpenStep {
    Sums sums;
    int64_t ranges = 0;  // in `counted`
    // By sequence key; sorted, disjoint, neighbours merged.
    absl::flat_hash_map<uint64_t, std::vector<Range>> counted;
  };

  void ForgetFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int kept_;
  mutable Mutex mutex_;
  // Draws below are forgotten, and never counted again.
  uint64_t first_draw_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t ranges_ ABSL_GUARDED_BY(mutex_) = 0;  // of all steps
  std::map<uint64_t, OpenStep> steps_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sis
