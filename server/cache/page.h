// A page: the records of 64 consecutive positions of one sequence. While it fills they lie token
// after token, in any order of arrival; then they are packed (docs/page_format.md).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "kernels/decide/backend.h"
#include "kernels/page/encoded_page.h"
#include "kernels/records/validate.h"
#include "server/memory/arena.h"
#include "server/memory/byte_budget.h"

namespace sis {

// What all pages of a run have in common.
struct RecordFormat {
  LogProbEncoding encoding;
  int slots;                // K
  int32_t vocabulary_size;  // V
  // Of packed pages. Sets of differing lengths take less room in ragged ones.
  PageVersion page_version = PageVersion::kFixed;

  bool ragged() const { return page_version == PageVersion::kRagged; }
};

// What a page takes of its sequence, which outlives it.
struct PageOwner {
  RecordFormat format;
  ByteBudget& budget;
};

// The size of the records of a page before it is packed.
size_t TailBytes(const RecordFormat& format);
// And after, up to so many positions; not of ragged pages.
size_t PackedBytes(const RecordFormat& format, uint32_t positions);
// The block for a page of this header. Ragged pages are of any length: blocks of fewer sizes share
// the arena's slabs, and are at most a sixteenth longer, or to the end of a cell.
size_t BlockBytes(const PageHeader& header);
// Of a page that holds all its positions: the records from `row` on.
size_t PackedBytes(const RecordFormat& format, const RecordView& records, size_t row,
                   std::span<const uint16_t> ranks);

// Token-major records of a page in heap memory, made when first asked for. For one format.
class RowBuffer {
 public:
  RecordRows Rows(const RecordFormat& format);

 private:
  std::unique_ptr<std::byte[]> memory_;
};

class Page;

// What a range of positions has in one page.
struct PagePart {
  uint32_t number;
  uint32_t index;  // in the page
  uint32_t count;
  size_t row;  // of the first of them in the range
};

// What backends read of ragged pages besides their own bytes. Used by one thread at a time.
class UnpackedPages {
 public:
  // Ends the views of them.
  void Clear();

 private:
  friend class Page;
  // Those of the page, which must not change until Clear.
  const UnpackedCounts& Of(const Page& page);

  std::deque<UnpackedCounts> counts_;
  size_t pages_ = 0;
  const Page* last_ = nullptr;
};

// Not thread-safe; the sequence that owns it locks. Const members may be called side by side.
//
// What is recorded is the rounded record: it doesn't change when it is packed or unpacked.
// Positions are given as an index in [0, kPositions).
class Page {
 public:
  static constexpr uint32_t kPositions = 64;
  static constexpr uint64_t kAll = ~uint64_t{0};
  static constexpr uint64_t Mask(uint32_t index, uint32_t count) {
    return (count == kPositions ? kAll : (uint64_t{1} << count) - 1) << index;
  }
  // Charged besides the block: the page itself and its place in the sequence's index, one
  // allocation.
  static constexpr int64_t kIndexBytes = 128;

  // Up to which a page that holds these positions is packed: the last one in a ragged page, else
  // the end of its group.
  static uint32_t PackedPositions(const RecordFormat& format, uint64_t present);

  // The block has TailBytes, or PackedBytes of all positions (which are always fewer) if these are
  // about to be added at once.
  // Block and kIndexBytes must have been charged to the budget, which gets back what the page holds
  // when it goes.
  Page(const PageOwner& owner, uint32_t first_position, Arena::Allocation block);
  ~Page();
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  // Bit i is set if the i-th position has a record.
  uint64_t present() const { return present_; }
  // The positions that its packed bytes hold; 0 if it isn't packed.
  uint32_t packed_positions() const { return packed_positions_; }
  bool packed() const { return packed_positions_ > 0; }
  std::span<const std::byte> block() const { return block_.bytes(); }
  // Set once Check has failed. Nothing more may then be read or added.
  bool corrupt() const { return corrupt_.load(std::memory_order_relaxed); }

  // DataLoss if the packed bytes don't have their checksum any more.
  absl::Status Check() const;

  // Adds the rows from `row` on, at index and after it, but for positions that are present. What
  // block a packed page needs, charged in place of its own: one of TailBytes if it stays
  // incomplete or is ragged, one for all positions if it is packed up to fewer, else none.
  void Add(uint32_t index, const RecordView& records, size_t row, uint32_t count,
           std::span<const uint16_t> ranks, Arena::Allocation block);
  // Packs the page, if it isn't yet and the arena has room; refunds the difference.
  void Pack(Arena& arena);

  // All 64 positions, decoded into the buffer if the page is packed. Absent ones hold anything.
  RecordRows Rows(RowBuffer& buffer) const;
  // Decodes [index, index + rows.ranks.size()), all of them present, into arrays that are not
  // empty.
  void Read(uint32_t index, const RecordRows& rows) const;
  // The same without unused slots: see ReadUsedSlots. Pages that are not ragged are unpacked into
  // the buffer.
  size_t ReadUsed(uint32_t index, const UsedRows& rows, RowBuffer& buffer) const;
  // For the backends; all of them must be present. Packed pages are read as they are, but for the
  // counts and ranks of ragged ones.
  BehaviorView Behavior(uint32_t index, uint32_t count, UnpackedPages& unpacked) const;

  // The digests of all records; 0 if they are corrupt.
  uint64_t digest() const { return corrupt() ? 0 : digest_; }
  // Of the records in [index, index + count).
  uint64_t Digest(uint32_t index, uint32_t count) const;
  // As it was before the page became corrupt, if it has; known if those are all of its records,
  // else 0.
  uint64_t DigestBefore(uint32_t index, uint32_t count) const;

 private:
  friend class UnpackedPages;
  // As if it held nothing.
  PageHeader NewHeader() const;
  // Of the packed bytes.
  PageHeader header() const;
  PageView View() const;
  BehaviorView GroupedBehavior(uint32_t index, uint32_t count) const;
  RecordRows TailRows() const;
  // Decodes all that is packed.
  void Unpack(const RecordRows& rows) const;
  // Packs the rows of all positions, none of which was present.
  void AddAll(const RecordView& records, std::span<const uint16_t> ranks);
  // Packs them into the block, as EncodePage does.
  void EncodeInto(const PageHeader& header, const RecordView& records,
                  std::span<const uint16_t> ranks, std::span<float> rounded_log_probs);
  // kRankAbsent where nothing is present.
  std::array<uint16_t, kPositions> PresentRanks(const RecordRows& rows) const;
  // Packs what is present.
  void Encode(const RecordRows& rows);
  // Rounds the rows of absent positions into `to`.
  void Store(uint32_t index, const RecordView& records, size_t row, uint32_t count,
             std::span<const uint16_t> ranks, const RecordRows& to);
  // None of which is present.
  void StoreAbsent(uint32_t index, const RecordView& records, size_t row, uint32_t count,
                   std::span<const uint16_t> ranks, const RecordRows& to);
  uint64_t DigestOf(const RecordRows& rows, uint64_t positions) const;

  const RecordFormat& format() const { return owner_.format; }

  const PageOwner& owner_;
  Arena::Allocation block_;
  const uint32_t first_position_;
  uint8_t packed_positions_;
  mutable std::atomic<bool> corrupt_ = false;
  RowsTag rows_;  // names the packed bytes as they are
  uint64_t present_ = 0;
  uint64_t digest_ = 0;
};

// Calls visit for the parts of [first, end), in order. Which lock `visit` needs is checked where it
// is written.
template <typename Visit>
ABSL_NO_THREAD_SAFETY_ANALYSIS void ForEachPart(uint32_t first, uint32_t end, const Visit& visit) {
  for (uint32_t position = first; position < end;) {
    const uint32_t index = position % Page::kPositions;
    const uint32_t count = std::min(end - position, Page::kPositions - index);
    visit(PagePart{position / Page::kPositions, index, count, position - first});
    position += count;
  }
}

// Prefetches the index-th row of an unpacked page whose block begins, or began, at `tail`: only
// addresses are computed, so the block may be gone.
void PrefetchTailRow(const RecordFormat& format, const std::byte* tail, uint32_t index);

// Rows [first, first + count), K = slots.
RecordView SubView(const RecordView& records, size_t first, size_t count, size_t slots);

// Whether a row, once rounded, is bit by bit the same as the index-th of those stored.
bool SameRecord(const RecordFormat& format, const RecordView& records, size_t row,
                const RecordRows& stored, size_t index);

}  // namespace sis
