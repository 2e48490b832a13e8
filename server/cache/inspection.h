// What is kept of a run's evaluations for people who want to look closer: the last values of a
// sample of sequences, and which of their tokens are accepted and rejected most.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/cache/byte_budget.h"
#include "server/cache/inspected_positions.h"
#include "server/cache/space_saving.h"
#include "server/threads/mutex.h"

namespace sis {

// Thread-safe. Sequences are chosen by a hash of their key: those whose hash is at most a limit,
// which is halved whenever the sequences of one draw don't fit, kept or pending. So the choice
// doesn't depend on the order in which ranks evaluate, and where servers have different limits, one
// keeps a part of what the other would. Sequences of earlier draws make way for those of the last.
class Inspection {
 public:
  // Holds at most `bytes`, a third of them for what is pending, charged to `budget`, which must
  // outlive the object. K = slots.
  Inspection(int64_t bytes, int slots, ByteBudget& budget);
  ~Inspection() { Clear(); }
  Inspection(const Inspection&) = delete;
  Inspection& operator=(const Inspection&) = delete;

  // Whether the values of a sequence with this Philox key would be kept. Takes no lock.
  bool Chosen(uint64_t sequence_key) const {
    return Hash(sequence_key) <= most_hash_.load(std::memory_order_relaxed);
  }
  // Only the first so many positions of a sequence are kept: it must not take all of the room.
  uint32_t kept_positions() const { return kept_positions_; }

  // Id and attempt.
  using Name = std::pair<std::string, uint32_t>;
  struct Sequence {
    uint64_t key;
    uint64_t draw;
    uint32_t first_position;
    InspectedPositions positions;
    // Positions of this draw that were evaluated but had no room lie in [cut_begin, cut_end).
    uint32_t cut_begin = 0;
    uint32_t cut_end = 0;
    std::string annotation = {};  // a serialised v1::Annotation; empty: none

    void Cut(uint32_t begin, uint32_t end);
  };
  // Keeps values of positions below kept_positions() in place of those there were; what is kept of
  // the sequence is then of this draw alone. Does nothing if the sequence is not chosen any more,
  // or there is no room.
  void Record(const Name& name, const Sequence& evaluated) ABSL_LOCKS_EXCLUDED(mutex_);

  // Values on their way to Record, still without what is recorded.
  struct Pending {
    Name name;
    Sequence values;
    // Adds what is recorded. False if it has changed since, or gone.
    std::function<bool(Sequence&)> add_records;
    std::optional<ByteCharge> charge;  // of TakeRoom; without it they are passed over
  };
  // For so many pending positions; nothing if too many wait. Then fewer sequences are chosen, and
  // fewer still once as many again of the draw found no room.
  std::optional<ByteCharge> TakeRoom(uint64_t sequence_key, uint64_t draw, size_t positions)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps them, in this order, for whoever looks first. Those passed over are cut.
  void Add(std::vector<Pending> pending) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the caller has to look, now or later: something is pending, and nobody else has to. One
  // who has calls LookAtNext until that returns false.
  bool MustLook() ABSL_LOCKS_EXCLUDED(mutex_);
  // Records the first of those that are pending; false if none is.
  bool LookAtNext() ABSL_LOCKS_EXCLUDED(looking_, mutex_) { return LookAtOne(/*must_look=*/true); }
  // All that are pending now, so that Describe and Find tell all that was evaluated before; not
  // those that are added meanwhile, which may never end.
  void LookAtAll() ABSL_LOCKS_EXCLUDED(looking_, mutex_);
  // How many times the values of a chosen sequence were not kept, as too many waited, or its
  // records had changed or gone before somebody looked.
  int64_t passed_over() const { return passed_over_.load(std::memory_order_relaxed); }

  // Whether others have the room that it asked for, since it was made or told to try again.
  bool lacks_room() const { return lacks_room_.load(std::memory_order_relaxed); }
  // There is room again: chooses as many as at first.
  void TryAgain() ABSL_LOCKS_EXCLUDED(mutex_);

  // Forgets everything.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets everything, and keeps nothing more.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // From the first position that was evaluated to the last.
  std::optional<Sequence> Find(const Name& name) const ABSL_LOCKS_EXCLUDED(mutex_);

  struct Summary {
    Name name;
    uint64_t draw;
    uint64_t positions;  // that were evaluated and are kept
    Sums sums;
    uint32_t cut_begin, cut_end;  // as in Sequence
  };
  struct TokenCounts {
    int32_t token;
    uint64_t accepted;  // neither is too low,
    uint64_t rejected;
    uint64_t max_error;  // nor too high by more
  };
  struct Deviation {
    Name name;
    uint32_t position;
    int32_t token;
    uint64_t draw;
    float log_ratio;
  };
  struct Overview {
    std::vector<Summary> sequences;  // by name
    // Those most over-represented among the rejected first, and last those among the accepted.
    std::vector<TokenCounts> tokens;
    std::vector<Deviation> deviations;  // largest |log w| first
  };
  Overview Describe() const ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t bytes() const { return budget_.used() + pending_budget_.used(); }

  // Of each of the two counts of tokens.
  static constexpr size_t kTokenCounters = 256;
  static constexpr int64_t kTokenBytes = 64 * 1024;
  // Charged per sequence: its name, and its places in the tables.
  static constexpr int64_t kSequenceBytes = 1024;
  // Positions are charged so many at a time.
  static constexpr size_t kStep = 64;
  static constexpr size_t kTokensShown = 32;  // from either end
  static constexpr size_t kDeviationsShown = 64;

 private:
  struct Kept {
    uint64_t hash;
    Sequence values;
    int64_t bytes;
    std::list<Name>::iterator by_use;
  };
  using Table = std::map<Name, Kept>;

  static uint64_t Hash(uint64_t sequence_key);
  bool LookAtOne(bool must_look) ABSL_LOCKS_EXCLUDED(looking_, mutex_);
  // Says so where other values of its draw are kept or pending.
  void PassOver(const Pending& sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Halves the limit of hashes, and drops what is above it, except for what is kept of `name`.
  void ChooseFewer(const Name& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(Table::iterator kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Charges them for a sequence of this name and hash. False if it is not chosen any more.
  bool MakeRoom(int64_t bytes, const Name& name, uint64_t hash, uint64_t draw)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts those that were not evaluated before in this draw.
  void CountTokens(const InspectedPositions& positions, const Sequence& before,
                   uint32_t first_position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<TokenCounts> Tokens() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const size_t slots_;
  ByteBudget budget_;
  ByteBudget pending_budget_;  // outlives what is pending
  const uint32_t kept_positions_;
  std::atomic<uint64_t> most_hash_;
  std::atomic<int64_t> passed_over_ = 0;
  std::atomic<bool> lacks_room_ = false;
  Mutex looking_;  // by one at a time, so that draws keep their order; comes before the next
  mutable Mutex mutex_;
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  // The last draw of which something found no room to wait, and how much since fewer are chosen.
  std::optional<uint64_t> draw_without_room_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_without_room_ ABSL_GUARDED_BY(mutex_) = 0;
  bool someone_must_look_ ABSL_GUARDED_BY(mutex_) = false;
  bool counts_tokens_ ABSL_GUARDED_BY(mutex_) = false;  // whether kTokenBytes are charged
  Table sequences_ ABSL_GUARDED_BY(mutex_);
  std::list<Name> by_use_ ABSL_GUARDED_BY(mutex_);  // recorded longest ago first
  SpaceSaving accepted_ ABSL_GUARDED_BY(mutex_){kTokenCounters};
  SpaceSaving rejected_ ABSL_GUARDED_BY(mutex_){kTokenCounters};
};

}  // namespace sis
