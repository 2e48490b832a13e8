// Totals per draw, each position counted once however often it is evaluated.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "server/cache/evaluated.h"
#include "server/cache/step_history.h"
#include "server/memory/byte_budget.h"
#include "server/threads/mutex.h"

namespace sis {

// Thread-safe.
class StepLedger {
 public:
  // Keeps the `kept` draws that were claimed last, or fewer, if together they hold more than
  // kMaxRanges separate ranges. Draws are names: a trainer that resumes from a checkpoint goes back
  // to smaller ones, and a foolish large one must not push the others out for good. One that was
  // forgotten is counted anew; its sums go to the history. All of it is charged to `budget`, which
  // must outlive the ledger; where it is short, draws are forgotten sooner, and the history is
  // thinned, at last to one stretch.
  StepLedger(int kept, ByteBudget& budget) : kept_(kept), budget_(budget) {}
  ~StepLedger() { budget_.Refund(charged_); }
  StepLedger(const StepLedger&) = delete;
  StepLedger& operator=(const StepLedger&) = delete;

  // A half-open range of positions.
  struct Range {
    uint32_t first;
    uint32_t end;
    friend bool operator==(const Range&, const Range&) = default;
  };

  struct Claimed {
    std::vector<Range> fresh;  // not counted before, nor masked now
    // How many positions more than before are in no call but masked: less than 0 if they are fewer.
    int64_t masked = 0;
    // How many positions would be fresh, but are left uncounted: the draw alone holds kMaxRanges,
    // or would need more than the budget has. There are no fresh ones then.
    int64_t uncounted = 0;
  };
  // Marks [range) of the sequence as counted for the draw, except the `masked` ranges, which lie in
  // it in rising order: a later call may count these.
  Claimed Claim(uint64_t draw, uint64_t sequence_key, Range range,
                std::span<const Range> masked = {}) ABSL_LOCKS_EXCLUDED(mutex_);

  // Positions that are not in a step's totals for want of room, each time that they are evaluated.
  struct Uncounted {
    int64_t positions = 0;     // in none of them
    int64_t prefix_curve = 0;  // at so many points of the curve, once for each
    int64_t corrections = 0;   // under so many observed corrections, once for each

    Uncounted& operator+=(const Uncounted& other) { return AddEach(other, *this); }
    friend bool operator==(const Uncounted&, const Uncounted&) = default;
  };
  // Adds what was claimed to the step's totals, but for points of the prefix curve and observed
  // corrections that the budget has no room for. `now` is when they were evaluated; `unclaimed`
  // positions were left uncounted. Returns all that is uncounted of these.
  Uncounted Add(uint64_t draw, const Evaluated& evaluated, absl::Time now, int64_t unclaimed = 0)
      ABSL_LOCKS_EXCLUDED(mutex_);

  struct Step {
    Evaluated evaluated;
    int64_t sequences;
    Uncounted uncounted;
    absl::Time ended;  // when something was added last; InfinitePast() if nothing was
  };
  std::optional<Step> Find(uint64_t draw) const ABSL_LOCKS_EXCLUDED(mutex_);
  struct NamedStep {
    uint64_t draw;
    Step step;
  };
  // All that are kept, the one claimed last at the end.
  std::vector<NamedStep> List() const ABSL_LOCKS_EXCLUDED(mutex_);
  // All draws there ever were, the oldest first: those that are kept, one by one, after those that
  // are not.
  std::vector<DrawStretch> History() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Puts what History() said in another life of the run before what this one evaluates. As much of
  // it as the budget has room for: where that is short, it gets coarser.
  void Restore(const StepHistory& history) ABSL_LOCKS_EXCLUDED(mutex_);
  // How many times something was added: whether History() is what it was.
  int64_t additions() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls it with each that is kept, the one claimed last first. It must not come back here.
  void ForEach(absl::FunctionRef<void(const Evaluated&)> take) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The one claimed last.
  std::optional<uint64_t> last_draw() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Bounds the memory: a sequence whose positions are all evaluated is one range.
  static constexpr int64_t kMaxRanges = 1 << 20;
  // Of a sequence with one range, in its table.
  static constexpr int64_t kRangeBytes = 96;
  // Of a step without ranges, of each correction that is observed in it, and of each point of its
  // prefix curve.
  static constexpr int64_t kStepBytes = 1536;
  static constexpr int64_t kObservedBytes = 256;
  static constexpr int64_t kPrefixPointBytes = 96;
  static_assert(kStepBytes > StepHistory::kStretchBytes, "to forget a step makes room");

 private:
  // Ends by beginnings; disjoint, neighbours merged.
  using Ranges = absl::btree_map<uint32_t, uint32_t>;

  struct OpenStep {
    Evaluated evaluated;
    Uncounted uncounted;
    // When something was added first, and last.
    absl::Time begun = absl::InfiniteFuture();
    absl::Time ended = absl::InfinitePast();
    int64_t ranges = 0;  // in the next two
    int64_t bytes = 0;   // charged
    // By sequence key: positions that were evaluated, and those of them that were always masked.
    absl::flat_hash_map<uint64_t, Ranges> evaluated_ranges;
    absl::flat_hash_map<uint64_t, Ranges> masked_ranges;
    std::list<uint64_t>::iterator by_use;  // in by_use_
  };

  static Step ToStep(const OpenStep& step);
  static DrawStretch ToStretch(uint64_t draw, const OpenStep& step);
  // The step of the draw, which is now the one used last; null if there is no room for it.
  OpenStep* Use(uint64_t draw) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops from `from` what the step does not hold yet and the budget has no room for; one entry is
  // so many bytes. Returns how many positions that was.
  template <typename Entries>
  int64_t DropWithoutRoom(OpenStep& step, int64_t bytes, const Entries& held, Entries& from)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes room for so many ranges of the step that was used last, or gives it back if they are less
  // than none. Forgets other steps where it is short; false if that is not enough.
  bool MakeRoom(OpenStep& step, int64_t ranges) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Charges bytes of the step that was used last, or refunds them if there are less than none.
  // Forgets other steps where the budget is short, then thins the history; false if that is not
  // enough.
  bool Charge(OpenStep& step, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives bytes of `charged_` back.
  void Refund(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ThinHistory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetLeastRecentlyUsed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int kept_;
  ByteBudget& budget_;
  mutable Mutex mutex_;
  int64_t ranges_ ABSL_GUARDED_BY(mutex_) = 0;   // of all steps
  int64_t charged_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of all steps, and of the history
  int64_t additions_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, OpenStep> steps_ ABSL_GUARDED_BY(mutex_);
  std::list<uint64_t> by_use_ ABSL_GUARDED_BY(mutex_);  // draws, least recently used first
  StepHistory history_ ABSL_GUARDED_BY(mutex_);         // of those that were forgotten, or restored
};

}  // namespace sis
