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

// Thread-safe: appends exclude each other and the readers, readers run side by side. Readers see
// whole blocks.
class Sequence {
 public:
  // The base cost must have been charged to the budget, which must outlive the sequence.
  Sequence(uint64_t key, ByteBudget& budget,
           std::unique_ptr<BackingStore::Attachment> attachment = nullptr)
      : key_(key), budget_(budget), attachment_(std::move(attachment)) {}
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  // Charged per sequence, for itself and its entries in the indexes of its run.
  static constexpr int64_t kBaseBytes = 416;
  // Blocks of fewer positions are merged.
  static constexpr uint32_t kSmallPositions = 256;
  // Charged per gap.
  static constexpr int64_t kGapBytes = 64;

  // The Philox key (kernels/numerics/sequence_key.h).
  uint64_t key() const { return key_; }
  // The backing store's; null without one.
  BackingStore::Attachment* attachment() const { return attachment_.get(); }

  // Positions of a block that is appended, and the size of the block that holds them alone.
  struct Range {
    uint32_t index;
    uint32_t count;
    size_t bytes;
  };
  using Ranges = absl::InlinedVector<Range, 2>;

  // What an Append that succeeded has done.
  struct Appended {
    Ranges ranges = {};             // that were not there
    int64_t positions = 0;          // of these ranges
    int64_t slots = 0;              // of these positions
    uint32_t committed_length = 0;  // now
  };
  // Stores a block that has passed CheckBlock, whole or not at all. Small blocks whose positions
  // follow each other become one, now or at the seal. Positions that are there already must be
  // equal, in version too: else AlreadyExists. FailedPrecondition at or beyond the seal;
  // ResourceExhausted if the budget doesn't hold the new bytes; DataLoss if a block that it
  // overlaps is corrupt.
  absl::Status Append(const BlockView& block, Appended* appended = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Notes why positions have no record, until an Append fills them; whole or not at all. Returns
  // false if all of them were noted already, filled since or not. AlreadyExists at a position that
  // has a record and was not noted before, or was noted for another reason. FailedPrecondition at
  // or beyond the seal; ResourceExhausted if the budget has no kGapBytes left.
  absl::StatusOr<bool> AppendGap(const Missing& gap) ABSL_LOCKS_EXCLUDED(mutex_);
  // What an Append will charge at most, as things are now.
  int64_t BytesToAppend(const BlockView& block) const ABSL_LOCKS_EXCLUDED(mutex_);
  // What a Seal that succeeded has changed.
  struct Sealed {
    bool first = false;           // it wasn't sealed before
    bool annotated = false;       // it has another annotation now
    std::string annotation = {};  // now
  };
  // No positions will come behind `length`: merges small blocks. FailedPrecondition below the
  // committed length, or with another length than before. `annotate` is given the present
  // annotation, under the lock, and returns the one that takes its place; empty: it stays.
  // ResourceExhausted if the budget does not hold it.
  absl::StatusOr<Sealed> Seal(uint32_t length,
                              absl::FunctionRef<std::string(const std::string& before)> annotate)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Seal(uint32_t length, std::string_view annotation = {}) ABSL_LOCKS_EXCLUDED(mutex_);
  // What it is charged.
  static int64_t AnnotationBytes(std::string_view annotation);

  // One past the highest position that has a record or lies in a gap.
  uint32_t committed_length() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool sealed() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The length that it is sealed at, if it is.
  std::optional<uint32_t> sealed_length() const ABSL_LOCKS_EXCLUDED(mutex_);
  // A serialised v1::Annotation; empty if it was sealed without, or is not sealed.
  std::string annotation() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t positions() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The largest version of any position; nothing if there is none.
  std::optional<uint64_t> newest_version() const ABSL_LOCKS_EXCLUDED(mutex_);

  // A view for reading that holds the lock: many at a time, but a thread must hold only one.
  class Reader;

 private:
  using Blocks = absl::btree_map<uint32_t, std::unique_ptr<const CachedBlock>>;

  struct Gap {
    uint32_t end;
    MissingReason reason;
  };

  absl::Status CheckBelowSeal(uint32_t end) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // AlreadyExists if one of these positions has a record.
  absl::Status CheckUnrecorded(uint32_t first, uint32_t end) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // The first block that ends behind the position.
  Blocks::const_iterator FirstBehind(uint32_t position) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Whether what is there already is equal.
  absl::Status CheckFits(const BlockView& block) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // What is not there yet.
  Ranges NewRanges(const BlockView& block) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  static int64_t ChargeOf(const Ranges& ranges);
  void Insert(std::unique_ptr<const CachedBlock> block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Puts one block in the place of this one and the next if that is possible. Both are there until
  // it is made, which the budget does not count. Changes the iterator to point to the first block
  // that stays.
  bool MergeWithNext(Blocks::iterator& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Keeps the number of small blocks at the end logarithmic, and so the times that a position is
  // copied: they double in size, as the bits of a binary counter do.
  void MergeAtEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Merges small blocks with their neighbors, whatever the size of those.
  void MergeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t key_;
  ByteBudget& budget_;
  const std::unique_ptr<BackingStore::Attachment> attachment_;

  mutable Mutex mutex_;
  // First position -> block; blocks don't overlap.
  Blocks blocks_ ABSL_GUARDED_BY(mutex_);
  // First position -> gap; gaps don't overlap, neighbours of one reason are merged. A gap stays
  // when its positions get records: these count, and the same gap may come again.
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
    const CachedBlock* block;  // null if missing; if it is corrupt, its records can't be read
    uint32_t index;            // of first_position in the block
    MissingReason reason = MissingReason::kNeverArrived;  // if missing
  };
  // Calls visit for consecutive pieces that cover [first, first + count), in order.
  void ForEachPiece(uint32_t first, uint32_t count,
                    const std::function<void(const Piece&)>& visit) const;

  // In order, those that records have filled since, too.
  std::vector<Missing> Gaps() const;

  // Looks at the checksums of the blocks that hold positions of [first, first + count). Those that
  // fail are corrupt from then on.
  void Check(uint32_t first, uint32_t count) const;

  // The record digest of those of [first, first + count) that can be read: corrupt blocks are left
  // out, and versions below `oldest_fresh`.
  uint64_t Digest(uint32_t first, uint32_t count, uint64_t oldest_fresh = 0) const;
  // The least `oldest_fresh` with which Digest is that, or was before blocks became corrupt;
  // nothing if there is none. So records that were fetched, of which some have gone since, are told
  // from others.
  std::optional<uint64_t> OldestFetched(uint64_t digest, uint32_t first, uint32_t count) const;
  // Whether there are corrupt blocks among those: what was fetched of them may not be known any
  // more.
  bool AnyCorrupt(uint32_t first, uint32_t count) const;

 private:
  enum class Damage { kLeftOut, kUndone };
  // Of the piece's records; 0 if they are missing.
  static uint64_t DigestOfPiece(const Piece& piece, Damage damage);

  const Sequence& sequence_;
};

}  // namespace sis
