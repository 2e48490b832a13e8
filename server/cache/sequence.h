// One recorded sequence: its blocks, its gaps, and its seal.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/block/block.h"
#include "server/cache/backing_store.h"
#include "server/cache/byte_budget.h"
#include "server/cache/cached_block.h"
#include "server/cache/missing.h"
#include "server/threads/mutex.h"

namespace sis {

// Thread-safe. Appends exclude each other and readers; readers run in parallel. Readers see whole
// blocks.
class Sequence {
 public:
  // The base cost must have been charged to the budget, which must outlive the sequence.
  Sequence(uint64_t key, ByteBudget& budget,
           std::unique_ptr<BackingStore::Attachment> attachment = nullptr)
      : key_(key), budget_(budget), attachment_(std::move(attachment)) {}
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  // Bytes charged per sequence, for itself and its entries in the indexes of its run.
  static constexpr int64_t kBaseBytes = 416;
  // Blocks of fewer positions are merged.
  static constexpr uint32_t kSmallPositions = 256;
  // Bytes charged per gap.
  static constexpr int64_t kGapBytes = 64;

  // The Philox key (kernels/numerics/sequence_key.h).
  uint64_t key() const { return key_; }
  // The backing store's data; null without a store.
  BackingStore::Attachment* attachment() const { return attachment_.get(); }

  // Positions of an appended block, and the size in bytes of a block with only these.
  struct Range {
    uint32_t index;
    uint32_t count;
    size_t bytes;
  };
  using Ranges = absl::InlinedVector<Range, 2>;

  // The result of a successful Append.
  struct Appended {
    Ranges ranges = {};             // the new positions
    int64_t positions = 0;          // their number
    int64_t slots = 0;              // number of their used slots
    uint32_t committed_length = 0;  // after the Append
  };
  // Stores a block that has passed CheckBlock, completely or not at all. Consecutive small blocks
  // are merged, now or at the seal. Returns
  // - AlreadyExists if a position has another record or version already,
  // - FailedPrecondition at or beyond the seal,
  // - ResourceExhausted if the new bytes exceed the budget,
  // - DataLoss if an overlapping block is corrupt.
  absl::Status Append(const BlockView& block, Appended* appended = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Records the reason why positions have no record, until an Append fills them; completely or not
  // at all. Returns false if the gap was known already, even if records have filled it since.
  // Errors:
  // - AlreadyExists at a position with another reason, or with a record and no earlier gap,
  // - FailedPrecondition at or beyond the seal,
  // - ResourceExhausted if the budget has no kGapBytes left.
  absl::StatusOr<bool> AppendGap(const Missing& gap) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the maximum bytes that an Append would charge now.
  int64_t BytesToAppend(const BlockView& block) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The result of a successful Seal.
  struct Sealed {
    bool first = false;           // the sequence wasn't sealed before
    bool annotated = false;       // the annotation has changed
    std::string annotation = {};  // after the Seal
  };
  // Ends the sequence at `length`, and merges small blocks. `annotate` is called under the lock
  // with the current annotation, and returns the new one, or an empty string to keep it. Returns
  // FailedPrecondition below the committed length, or if the sequence is sealed at another length;
  // ResourceExhausted if the annotation exceeds the budget.
  absl::StatusOr<Sealed> Seal(uint32_t length,
                              absl::FunctionRef<std::string(const std::string& before)> annotate)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Seal(uint32_t length, std::string_view annotation = {}) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the bytes charged for an annotation.
  static int64_t AnnotationBytes(std::string_view annotation);

  // Returns one past the highest position that has a record or is in a gap.
  uint32_t committed_length() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool sealed() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns nullopt if the sequence is not sealed.
  std::optional<uint32_t> sealed_length() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns a serialised v1::Annotation; empty if there is none.
  std::string annotation() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t positions() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the largest version of any position; nullopt without positions.
  std::optional<uint64_t> newest_version() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Holds the lock for reading. A thread must hold only one.
  class Reader;

 private:
  using Blocks = absl::btree_map<uint32_t, std::unique_ptr<const CachedBlock>>;

  struct Gap {
    uint32_t end;
    MissingReason reason;
  };

  absl::Status CheckBelowSeal(uint32_t end) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns AlreadyExists if one of these positions has a record.
  absl::Status CheckUnrecorded(uint32_t first, uint32_t end) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns the first block that ends after the position.
  Blocks::const_iterator FirstBehind(uint32_t position) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns OK if all recorded positions of the block equal their records.
  absl::Status CheckFits(const BlockView& block) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns the positions of the block without a record.
  Ranges NewRanges(const BlockView& block) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  static int64_t ChargeOf(const Ranges& ranges);
  void Insert(std::unique_ptr<const CachedBlock> block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Replaces as many as possible of blocks [first, last) by a single one, from the first. If any
  // merge, sets `first` to their block and returns true. The budget does not count the moment when
  // both forms exist.
  bool Merge(Blocks::iterator& first, Blocks::iterator last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Merges blocks of similar size at the end, 16 at a time. So single positions are copied
  // twice, and at most 30 small blocks remain.
  void MergeAtEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Merges small blocks with neighbors of any size.
  void MergeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t key_;
  ByteBudget& budget_;
  const std::unique_ptr<BackingStore::Attachment> attachment_;

  mutable Mutex mutex_;
  // First position -> block; blocks don't overlap.
  Blocks blocks_ ABSL_GUARDED_BY(mutex_);
  // First position -> gap. Gaps don't overlap, and neighbours of one reason are merged. A gap stays
  // when its positions get records, so that it is recognised if resent; the records take
  // precedence.
  absl::btree_map<uint32_t, Gap> gaps_ ABSL_GUARDED_BY(mutex_);
  uint32_t committed_length_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t positions_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<uint32_t> sealed_length_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<const std::string> annotation_ ABSL_GUARDED_BY(mutex_);  // null: none
};

class ABSL_SCOPED_LOCKABLE Sequence::Reader {
 public:
  explicit Reader(const Sequence& sequence) ABSL_SHARED_LOCK_FUNCTION(sequence.mutex_)
      : sequence_(sequence) {
    sequence_.mutex_.lock_shared();
  }
  ~Reader() ABSL_UNLOCK_FUNCTION() { sequence_.mutex_.unlock_shared(); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  uint32_t committed_length() const;

  // Consecutive positions of one block, or consecutive positions that are missing.
  struct Piece {
    uint32_t first_position;
    uint32_t count;
    const CachedBlock* block;  // null if missing; its records can't be read if it is corrupt
    uint32_t index;            // of first_position in the block
    MissingReason reason = MissingReason::kNeverArrived;  // if missing
  };
  // Calls visit for consecutive pieces that cover [first, first + count), in order.
  void ForEachPiece(uint32_t first, uint32_t count,
                    const std::function<void(const Piece&)>& visit) const;

  // Returns all gaps in order, even if records have filled them.
  std::vector<Missing> Gaps() const;

  // Returns the record digest of the readable positions in [first, first + count): without corrupt
  // blocks and versions below `oldest_fresh`.
  uint64_t Digest(uint32_t first, uint32_t count, uint64_t oldest_fresh = 0) const;
  // Returns the smallest `oldest_fresh` for which Digest equals `digest`, with corrupt blocks left
  // out, or with their digests from before the damage; nullopt if there is none. A result proves
  // that these are the fetched records, even if some have become stale or corrupt since.
  std::optional<uint64_t> OldestFetched(uint64_t digest, uint32_t first, uint32_t count) const;
  // Returns true if a block with positions in [first, first + count) is corrupt. The fetched
  // records can then perhaps not be verified.
  bool AnyCorrupt(uint32_t first, uint32_t count) const;

 private:
  enum class Damage { kLeftOut, kUndone };
  // Returns the digest of the piece's records; 0 if they are missing.
  static uint64_t DigestOfPiece(const Piece& piece, Damage damage);

  const Sequence& sequence_;
};

}  // namespace sis
