// Totals per draw, each position counted once however often it is evaluated.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "server/cache/byte_budget.h"
#include "server/cache/evaluated.h"
#include "server/threads/mutex.h"

namespace sis {

// Thread-safe. Draws are names: a trainer that resumes from a checkpoint goes back to smaller ones,
// and a very large one must not push the others out permanently. So all is ordered by when counting
// began.
class StepLedger {
 public:
  // Number of draws kept, the ones begun last.
  static constexpr uint64_t kSumsKept = 4096;
  static constexpr uint64_t kClaimsKept = 64;
  struct Kept {
    uint64_t sums = kSumsKept;
    // Claims say which positions were counted. An older draw that is evaluated again is counted
    // from zero, as the newest one, and its former sums are dropped.
    uint64_t claims = kClaimsKept;
  };

  // Charges everything to `budget`, which must outlive the ledger. Where it is short, the ledger's
  // oldest claims are dropped, then its oldest sums. Sums of draws without claims leave half of the
  // budget to other runs. A draw that has lost its claims in this way is counted no further.
  explicit StepLedger(ByteBudget& budget) : StepLedger(budget, Kept()) {}
  StepLedger(ByteBudget& budget, Kept kept) : kept_(kept), budget_(budget) {}
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
    // Change in the number of positions that every call masked. Negative if an earlier call had
    // masked positions that are fresh now.
    int64_t masked = 0;
    // Number of positions that would be fresh, but stay uncounted, because the draw holds
    // kMaxRanges, needs more than the budget has, or has lost its claims. `fresh` is empty then.
    int64_t uncounted = 0;
  };
  // Marks [range) of the sequence as counted for the draw, except the `masked` ranges, which lie in
  // it in ascending order. A later call may count the masked positions.
  Claimed Claim(uint64_t draw, uint64_t sequence_key, Range range,
                std::span<const Range> masked = {}) ABSL_LOCKS_EXCLUDED(mutex_);

  // Positions missing from a step's totals because the budget had no room. A position counts each
  // time that it is evaluated.
  struct Uncounted {
    int64_t positions = 0;     // in no total
    int64_t prefix_curve = 0;  // positions times omitted points of the curve
    int64_t corrections = 0;   // positions times omitted observed corrections

    Uncounted& operator+=(const Uncounted& other) { return AddEach(other, *this); }
    friend bool operator==(const Uncounted&, const Uncounted&) = default;
  };
  // Adds claimed positions to the step's totals, except points of the prefix curve and observed
  // corrections that the budget has no room for. `now` is the time of the evaluation. `unclaimed`
  // is Claimed::uncounted. Returns everything that stays uncounted.
  Uncounted Add(uint64_t draw, const Evaluated& evaluated, absl::Time now, int64_t unclaimed = 0)
      ABSL_LOCKS_EXCLUDED(mutex_);

  struct Step {
    uint64_t draw = 0;
    // Numbers the draws in the order in which counting began.
    uint64_t number = 0;
    Evaluated evaluated;
    int64_t sequences = 0;  // with counted positions
    Uncounted uncounted;
    // Times of the first and the last addition. Infinite if there was none.
    absl::Time begun = absl::InfiniteFuture();
    absl::Time ended = absl::InfinitePast();
    int64_t addition = 0;  // additions() when something was added last
  };
  std::optional<Step> Find(uint64_t draw) const ABSL_LOCKS_EXCLUDED(mutex_);
  // At most `limit` draws to which something was added, oldest first: those begun after the draw
  // `after`, or all if `after` is not kept or is nullopt.
  std::vector<Step> List(std::optional<uint64_t> after = std::nullopt,
                         size_t limit = SIZE_MAX) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The draws to which something was added since additions() was `additions`, oldest first.
  std::vector<Step> AddedSince(int64_t additions) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Restores stored steps of the run, before all steps that are evaluated from now on. Restores as
  // many of the newest as the budget has room for. If steps have the same draw, keeps the step with
  // the largest number. Must be called before the first Claim.
  void Restore(std::vector<Step> steps) ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops all steps. Later claims stay uncounted.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the number of additions.
  int64_t additions() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `take` with each of the last Kept::claims draws, the newest first. `take` must not call
  // the ledger.
  void ForEach(absl::FunctionRef<void(const Evaluated&)> take) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The draw begun last.
  std::optional<uint64_t> last_draw() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Maximum number of ranges, which bounds the memory. A completely evaluated sequence is one
  // range.
  static constexpr int64_t kMaxRanges = 1 << 20;
  // Size of a sequence with one range in its table, in bytes.
  static constexpr int64_t kRangeBytes = 96;
  // Sizes, in bytes: a step without ranges, each correction observed in it, and each point of its
  // prefix curve.
  static constexpr int64_t kStepBytes = 1920;
  static constexpr int64_t kObservedBytes = 256;
  static constexpr int64_t kPrefixPointBytes = 96;

 private:
  struct CountedStep : Step {
    int64_t bytes = 0;   // charged, except for ranges
    int64_t ranges = 0;  // in both maps below
    // By sequence key, first position -> end: the counted positions, and those that every call
    // masked. Ranges are disjoint, and neighbours are merged. Every sequence is in the first map.
    absl::flat_hash_map<uint64_t, absl::btree_map<uint32_t, uint32_t>> counted_ranges;
    absl::flat_hash_map<uint64_t, absl::btree_map<uint32_t, uint32_t>> masked_ranges;
  };
  static_assert(sizeof(CountedStep) + 8 * sizeof(uint64_t) <= kStepBytes);

  // Returns the step of the draw, with its claims; null if there is no room for it, it has lost its
  // claims, or the ledger is closed.
  CountedStep* Open(uint64_t draw) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes from `from` the entries that the step does not hold yet and the budget has no room for;
  // one entry takes `bytes`. Returns how many positions these are.
  template <typename Entries>
  int64_t DropWithoutRoom(CountedStep& step, int64_t bytes, const Entries& held, Entries& from)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes room for `ranges` ranges of the step, or releases it if `ranges` is negative. Returns
  // false if dropping all other claims and sums does not make enough room.
  bool MakeRoom(CountedStep& step, int64_t ranges) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Charges bytes for the step, or refunds them if negative. Returns false as MakeRoom does.
  bool Charge(const CountedStep& step, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refund(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops the oldest claims, except those of `step`. Returns false if there are no others.
  bool DropOldestClaims(const CountedStep* step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops the oldest sums, with their claims, except those of `step`. Returns false if there are no
  // others.
  bool DropOldestSums(const CountedStep* step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropClaims(CountedStep& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Kept kept_;
  ByteBudget& budget_;
  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t ranges_ ABSL_GUARDED_BY(mutex_) = 0;   // of all steps
  int64_t charged_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of all steps
  int64_t additions_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t first_number_ ABSL_GUARDED_BY(mutex_) = 0;  // of steps that were not restored
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, CountedStep> steps_ ABSL_GUARDED_BY(mutex_);            // by number
  absl::flat_hash_map<uint64_t, uint64_t> numbers_ ABSL_GUARDED_BY(mutex_);  // by draw
  std::deque<uint64_t> claimed_ ABSL_GUARDED_BY(mutex_);  // numbers of steps with claims, ascending
};

}  // namespace sis
