// One recorded sequence: its pages, the policy versions of its positions, its gaps, and its seal.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
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
#include "kernels/records/validate.h"
#include "server/cache/backing_store.h"
#include "server/cache/missing.h"
#include "server/cache/page.h"
#include "server/memory/arena.h"
#include "server/memory/byte_budget.h"
#include "server/threads/mutex.h"

namespace sis {

// Thread-safe: appends exclude each other and the readers, readers run side by side. Readers see
// whole blocks.
class Sequence {
 public:
  // The base cost must have been charged to the budget; budget and arena must outlive the sequence.
  Sequence(const RecordFormat& format, uint64_t key, Arena& arena, ByteBudget& budget,
           std::unique_ptr<BackingStore::Attachment> attachment = nullptr)
      : owner_{format, budget}, key_(key), arena_(arena), attachment_(std::move(attachment)) {}
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  // Charged per sequence, for itself and its entries in the indexes of its run.
  static constexpr int64_t kBaseBytes = 496;
  // Pages that are kept unpacked to be filled; a third open one packs the first.
  static constexpr size_t kOpenTails = 2;
  // Charged per stretch of positions of one policy version.
  static constexpr int64_t kVersionSpanBytes = 64;
  // Charged per gap.
  static constexpr int64_t kGapBytes = 64;

  // The bytes of the first block of a new sequence, its base cost aside.
  static int64_t BytesOfFirstBlock(const RecordFormat& format, uint32_t first_position,
                                   const RecordView& records, std::span<const uint16_t> ranks);

  // The Philox key (kernels/numerics/sequence_key.h).
  uint64_t key() const { return key_; }
  const RecordFormat& format() const { return owner_.format; }
  // The backing store's; null without one.
  BackingStore::Attachment* attachment() const { return attachment_.get(); }

  // What an Append that succeeded has done.
  struct Appended {
    int64_t positions = 0;          // that were not there
    uint32_t committed_length = 0;  // now
  };
  // Stores valid records at first_position, ... , whole or not at all, rounded as the format's
  // encoding does; records read back from a sequence of the same format are stored as they are.
  // Positions that are there already must be equal, in version too: else AlreadyExists.
  // FailedPrecondition at or beyond the seal; ResourceExhausted if budget or arena don't hold the
  // new bytes; DataLoss if a page it would add to is corrupt.
  absl::Status Append(uint32_t first_position, uint64_t policy_version, const RecordView& records,
                      std::span<const uint16_t> ranks, Appended* appended = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Notes why positions have no record, until an Append fills them; whole or not at all. Returns
  // false if all of them were noted already, filled since or not. AlreadyExists at a position that
  // has a record and was not noted before, or was noted for another reason. FailedPrecondition at
  // or beyond the seal; ResourceExhausted if the budget has no kGapBytes left.
  absl::StatusOr<bool> AppendGap(const Missing& gap) ABSL_LOCKS_EXCLUDED(mutex_);
  // Prefetches the memory that an append at the end will touch, which with many sequences is in no
  // cache of the processor. Takes no lock.
  void PrefetchEnd() const;
  // What an Append will charge, as things are now.
  int64_t BytesToAppend(uint32_t first_position, uint64_t policy_version, const RecordView& records,
                        std::span<const uint16_t> ranks) const ABSL_LOCKS_EXCLUDED(mutex_);
  // What a Seal that succeeded has changed.
  struct Sealed {
    bool first = false;           // it wasn't sealed before
    bool annotated = false;       // it has another annotation now
    std::string annotation = {};  // now
  };
  // No more positions will come: packs all pages. FailedPrecondition below the committed length, or
  // with another length than before. `annotate` is given the present annotation, under the lock,
  // and returns the one that takes its place; empty: it stays. ResourceExhausted if the budget does
  // not hold it.
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
  // A run of positions generated by one version.
  struct VersionSpan {
    uint32_t end;
    uint64_t version;
  };

  struct Gap {
    uint32_t end;
    MissingReason reason;
  };

  // What a page needs before positions can be added.
  struct PageNeed {
    int64_t charge = 0;
    size_t block_bytes = 0;  // of a new block; 0: none
  };
  PageNeed NeedOf(const PagePart& part, const RecordView& records,
                  std::span<const uint16_t> ranks) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // The common case: positions of the last ones' version that follow those, in the page that is
  // being filled. Nothing need be compared, charged or merged. False if it is another case.
  bool AddToLastTail(uint32_t first_position, uint64_t policy_version, const RecordView& records,
                     std::span<const uint16_t> ranks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns how many positions were new.
  int64_t AddToPage(const PagePart& part, const RecordView& records,
                    std::span<const uint16_t> ranks, Arena::Allocation block)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Packs all tails once sealed, before that the least recently filled ones if there are too many.
  void PackTails() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status CheckBelowSeal(uint32_t end) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // AlreadyExists if one of these positions has a record.
  absl::Status CheckUnrecorded(uint32_t first, uint32_t end) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckFits(uint32_t first_position, uint64_t policy_version,
                         const RecordView& records) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckFitsPage(const PagePart& part, uint64_t policy_version,
                             const RecordView& records, RowBuffer& buffer) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // What all of these positions need: the block of each PagePart in turn, and what is charged.
  struct NewBlocks {
    int64_t charge = 0;
    absl::InlinedVector<size_t, 2> bytes;
  };
  NewBlocks NeedOf(uint32_t first_position, uint64_t policy_version, const RecordView& records,
                   std::span<const uint16_t> ranks) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  uint64_t VersionAt(uint32_t position) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Whether a span of this version holds a position of [first, end), or ends or begins there.
  bool TouchesSpan(uint32_t first, uint32_t end, uint64_t version) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Refunds the spans that become one.
  void SetVersion(uint32_t first, uint32_t end, uint64_t version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Where the last append ended, for PrefetchEnd. Addresses only: what was there may be gone.
  struct End {
    std::atomic<const void*> page = nullptr;
    std::atomic<const void*> span = nullptr;
    std::atomic<const std::byte*> tail = nullptr;
  };
  void NoteEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PageOwner owner_;
  const uint64_t key_;
  Arena& arena_;
  const std::unique_ptr<BackingStore::Attachment> attachment_;

  End end_;
  mutable Mutex mutex_;
  // Page number -> page. Gaps have none.
  std::map<uint32_t, Page> pages_ ABSL_GUARDED_BY(mutex_);
  // Numbers of pages that are still filled, the most recently filled last. Other tails are those
  // that the arena had no room to pack.
  absl::InlinedVector<uint32_t, kOpenTails + 2> open_tails_ ABSL_GUARDED_BY(mutex_);
  // First position -> span; spans don't overlap, neighbours of one version are merged.
  absl::btree_map<uint32_t, VersionSpan> versions_ ABSL_GUARDED_BY(mutex_);
  // First position -> gap; gaps don't overlap, neighbours of one reason are merged. A gap stays
  // when its positions get records: these count, and the same gap may come again.
  absl::btree_map<uint32_t, Gap> gaps_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint32_t> committed_length_ = 0;  // changes under the lock
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

  // Consecutive positions of one page, all present or all missing.
  struct Piece {
    uint32_t first_position;
    uint32_t count;
    const Page* page;  // null if missing; if it is corrupt, its records can't be read
    uint32_t index;    // of first_position in the page
    uint64_t version;  // of all of them, if present
    MissingReason reason = MissingReason::kNeverArrived;  // if missing
  };
  // Calls visit for consecutive pieces that cover [first, first + count), in order.
  void ForEachPiece(uint32_t first, uint32_t count,
                    const std::function<void(const Piece&)>& visit) const;

  // In order, those that records have filled since, too.
  std::vector<Missing> Gaps() const;

  // Looks at the checksums of the packed pages that hold positions of [first, first + count). Pages
  // that fail are corrupt from then on.
  void Check(uint32_t first, uint32_t count) const;

  // The record digest of those of [first, first + count) that can be read: corrupt pages are left
  // out, and versions below `oldest_fresh`.
  uint64_t Digest(uint32_t first, uint32_t count, uint64_t oldest_fresh = 0) const;
  // The least `oldest_fresh` with which Digest is that, or was before pages became corrupt; nothing
  // if there is none. So records that were fetched, of which some have gone since, are told from
  // others.
  std::optional<uint64_t> OldestFetched(uint64_t digest, uint32_t first, uint32_t count) const;
  // Whether there are corrupt pages among those: what was fetched of them may not be known any
  // more.
  bool AnyCorrupt(uint32_t first, uint32_t count) const;

 private:
  enum class Damage { kLeftOut, kUndone };
  // Calls visit(version, first, count) for those that are present, in order.
  template <typename Visit>
  void ForEachVersion(uint32_t first, uint32_t count, const Visit& visit) const;

  uint64_t DigestOfAnyVersion(uint32_t first, uint32_t count,
                              Damage damage = Damage::kLeftOut) const;

  const Sequence& sequence_;
};

}  // namespace sis
