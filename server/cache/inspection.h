// Keeps evaluated values of a run for people to inspect: the last values of a sample of its
// sequences, and the tokens that are accepted and rejected most.
#pragma once

#include <atomic>
#include <cstdint>
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

// Thread-safe. Chooses the sequences whose hash is at most a limit. The limit is halved whenever
// the kept sequences of one draw don't fit. The choice therefore doesn't depend on the order in
// which ranks evaluate, and of two servers with different limits, one keeps a subset of the other's
// choice. Sequences of earlier draws are removed to make room for the last draw's.
class Inspection {
 public:
  // Holds at most `bytes`. Charges them to `budget`, which must outlive the object. `slots` is K.
  Inspection(int64_t bytes, int slots, ByteBudget& budget);
  ~Inspection() { Clear(); }
  Inspection(const Inspection&) = delete;
  Inspection& operator=(const Inspection&) = delete;

  // Returns true if the values of a sequence with this Philox key would be kept. Takes no lock.
  bool Chosen(uint64_t sequence_key) const {
    return Hash(sequence_key) <= max_hash_.load(std::memory_order_relaxed);
  }
  // Returns the maximum number of positions kept of a sequence, its first ones. The limit leaves
  // space for other sequences.
  uint32_t kept_positions() const { return kept_positions_; }

  // Id and attempt.
  using Name = std::pair<std::string, uint32_t>;
  struct Sequence {
    uint64_t key;
    uint64_t draw;
    uint32_t first_position;
    InspectedPositions positions;
    // [cut_begin, cut_end) contains the positions that this draw evaluated but had no space to
    // keep.
    uint32_t cut_begin = 0;
    uint32_t cut_end = 0;
    std::string annotation = {};  // a serialised v1::Annotation; empty: none

    void Cut(uint32_t begin, uint32_t end);
  };
  // Keeps the values of positions below kept_positions(), and removes the sequence's values of
  // other draws. Does nothing if the sequence is no longer chosen, or there is no space.
  void Record(const Name& name, const Sequence& evaluated) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns true if other runs had the space that this one needed, since the start or the last
  // TryAgain.
  bool lacks_room() const { return lacks_room_.load(std::memory_order_relaxed); }
  // Chooses as many sequences as at the start, because there is space again.
  void TryAgain() ABSL_LOCKS_EXCLUDED(mutex_);

  // Forgets everything.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets everything, and keeps nothing from then on.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the kept values, from the first evaluated position to the last.
  std::optional<Sequence> Find(const Name& name) const ABSL_LOCKS_EXCLUDED(mutex_);

  struct Summary {
    Name name;
    uint64_t draw;
    uint64_t positions;  // evaluated and kept
    Sums sums;
    uint32_t cut_begin, cut_end;  // as in Sequence
  };
  struct TokenCounts {
    int32_t token;
    // Counts that exceed the true ones by at most `max_error`, and are never below them.
    uint64_t accepted;
    uint64_t rejected;
    uint64_t max_error;
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
    // First the tokens most over-represented among the rejected ones, last among the accepted ones.
    std::vector<TokenCounts> tokens;
    std::vector<Deviation> deviations;  // largest |log w| first
  };
  Overview Describe() const ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t bytes() const { return budget_.used(); }

  // Number of counters for accepted tokens, and for rejected tokens.
  static constexpr size_t kTokenCounters = 256;
  static constexpr int64_t kTokenBytes = 64 * 1024;
  // Bytes charged per sequence, for its name and its table entries.
  static constexpr int64_t kSequenceBytes = 1024;
  // Positions are charged in multiples of this number.
  static constexpr size_t kStep = 64;
  static constexpr size_t kTokensShown = 32;  // from each end
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
  // Halves the hash limit, and drops the sequences above it, except `name`.
  void ChooseFewer(const Name& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(Table::iterator kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Charges `bytes` for a sequence. Drops others if necessary. Returns false if the sequence is no
  // longer chosen.
  bool MakeRoom(int64_t bytes, const Name& name, uint64_t hash, uint64_t draw)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts the tokens of positions that this draw had not evaluated before.
  void CountTokens(const InspectedPositions& positions, const Sequence& before,
                   uint32_t first_position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<TokenCounts> Tokens() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const size_t slots_;
  ByteBudget budget_;
  const uint32_t kept_positions_;
  std::atomic<uint64_t> max_hash_;
  std::atomic<bool> lacks_room_ = false;
  mutable Mutex mutex_;
  bool counts_tokens_ ABSL_GUARDED_BY(mutex_) = false;  // whether kTokenBytes are charged
  Table sequences_ ABSL_GUARDED_BY(mutex_);
  std::list<Name> by_use_ ABSL_GUARDED_BY(mutex_);  // recorded longest ago first
  SpaceSaving accepted_ ABSL_GUARDED_BY(mutex_){kTokenCounters};
  SpaceSaving rejected_ ABSL_GUARDED_BY(mutex_){kTokenCounters};
};

}  // namespace sis
