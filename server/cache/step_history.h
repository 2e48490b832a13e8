// All draws of a run, thinned as they age: neighbours are merged by adding their sums up, so what
// is lost is only where one draw ends and the next begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/time/time.h"
#include "server/cache/long_sums.h"
#include "server/cache/missing.h"

namespace sis {

// Draws that were evaluated one after another. Sums, never means: of each position that was counted
// there, once per draw.
struct DrawStretch {
  // In the order of evaluation: a trainer that resumed goes back to smaller ones.
  uint64_t first_draw = 0;
  uint64_t last_draw = 0;
  int64_t draws = 0;
  absl::Time begun = absl::InfiniteFuture();  // the first evaluation of any of them
  absl::Time ended = absl::InfinitePast();    // and the last
  int64_t sequences = 0;                      // of each draw, added up
  LongSums sums = {};
  MissingCounts missing = {};
  CorrectionTotals plain = {}, clipped = {}, applied = {};  // as in Statistics
  int64_t uncounted = 0;  // positions that are in none of the sums

  // Adds draws that were evaluated after these.
  DrawStretch& operator+=(const DrawStretch& later);
};

// Not thread-safe.
class StepHistory {
 public:
  // Adds the newest. Beyond kMostStretches it thins.
  void Add(DrawStretch newest);
  // Merges the two neighbours that are the shortest beside their age; false if there is only one.
  // The age of a stretch is how many draws came after it, and kFullDraws more. So after n draws a
  // stretch of age A holds one draw, or no more than A r of them, r being
  // ((n + F) / F)^(2 / N) - 1, F kFullDraws and N kMostStretches: 4% after 10,000 draws, 8% after a
  // million. Where memory is short it is called more often, and this does not hold.
  bool Thin();

  // The oldest first.
  const std::deque<DrawStretch>& stretches() const { return stretches_; }
  // What the history costs; the first stretch is part of the run.
  int64_t bytes() const {
    return stretches_.empty() ? 0 : (static_cast<int64_t>(stretches_.size()) - 1) * kStretchBytes;
  }

  static constexpr size_t kMostStretches = 256;
  static constexpr int64_t kFullDraws = 64;
  // With what a deque adds to it.
  static constexpr int64_t kStretchBytes = 544;

 private:
  std::deque<DrawStretch> stretches_;
};
static_assert(sizeof(DrawStretch) + 3 * sizeof(void*) <= StepHistory::kStretchBytes);

}  // namespace sis
