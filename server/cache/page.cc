#include "server/cache/page.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/decide/decide.h"
#include "kernels/page/page_layout.h"
#include "kernels/records/log_probs.h"
#include "kernels/records/record_digest.h"

namespace sis {
namespace {

// Hands out consecutive pieces of memory, widest type first so that all are aligned.
class Carver {
 public:
  explicit Carver(std::byte* memory) : next_(memory) {}
  template <typename T>
  std::span<T> Take(size_t count) {
    std::span<T> piece(reinterpret_cast<T*>(next_), count);
    next_ += piece.size_bytes();
    return piece;
  }

 private:
  std::byte* next_;
};

RecordRows Carve(std::byte* memory, size_t slots) {
  Carver carver(memory);
  return {.sampled_ids = carver.Take<int32_t>(Page::kPositions),
          .sampled_log_probs = carver.Take<float>(Page::kPositions),
          .ids = carver.Take<int32_t>(Page::kPositions * slots),
          .log_probs = carver.Take<float>(Page::kPositions * slots),
          .ranks = carver.Take<uint16_t>(Page::kPositions)};
}

RecordView ViewOf(const RecordRows& rows) {
  return {.sampled_ids = rows.sampled_ids,
          .sampled_log_probs = rows.sampled_log_probs,
          .ids = rows.ids,
          .log_probs = rows.log_probs};
}

// Rounds the rows [row, row + used_slots.size()).
void RoundRows(const RecordFormat& format, const RecordView& records, size_t row,
               std::span<float> rounded, std::span<uint16_t> used_slots) {
  const size_t slots = format.slots;
  if (records.counts.empty()) {
    RoundBehaviorRows(format.encoding,
                      records.log_probs.subspan(row * slots, used_slots.size() * slots),
                      format.slots, rounded, used_slots);
    return;
  }
  for (size_t i = 0; i < used_slots.size(); ++i) {
    const size_t count = records.counts[row + i];
    const std::span<float> to = rounded.subspan(i * slots, slots);
    RoundBehaviorRows(format.encoding, records.log_probs.subspan((row + i) * slots, count),
                      static_cast<int>(count), to, used_slots.subspan(i, 1));
    std::ranges::fill(to.subspan(count), kMinusInfinity);
  }
}

// Whether a slot that has an id was too low to be encoded.
bool LosesIds(std::span<const int32_t> ids, std::span<const float> rounded, size_t slots) {
  for (size_t end = slots; end <= ids.size(); end += slots) {
    for (size_t i = end; i > end - slots && rounded[i - 1] == kMinusInfinity; --i) {
      if (ids[i - 1] != -1) return true;
    }
  }
  return false;
}

template <typename T>
bool SameBits(std::span<const T> a, std::span<const T> b) {
  return std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Where the array is wanted.
void CopyTo(const auto& wanted, const auto& array) {
  if (!wanted.empty()) std::ranges::copy(array, wanted.begin());
}

PageHeader HeaderWith(const RecordFormat& format, uint32_t first_position, uint32_t positions) {
  return {.encoding = format.encoding,
          .slots = format.slots,
          .vocabulary_size = format.vocabulary_size,
          .first_position = first_position,
          .positions = positions,
          .version = format.page_version};
}

}  // namespace

RecordView SubView(const RecordView& records, size_t first, size_t count, size_t slots) {
  return {.sampled_ids = records.sampled_ids.subspan(first, count),
          .sampled_log_probs = records.sampled_log_probs.subspan(first, count),
          .ids = records.ids.subspan(first * slots, count * slots),
          .log_probs = records.log_probs.subspan(first * slots, count * slots),
          .counts = records.counts.empty() ? records.counts : records.counts.subspan(first, count)};
}

size_t TailBytes(const RecordFormat& format) {
  const size_t slot_bytes = sizeof(int32_t) + sizeof(float);
  return Page::kPositions * ((1 + format.slots) * slot_bytes + sizeof(uint16_t));
}

size_t PackedBytes(const RecordFormat& format, uint32_t positions) {
  return PageBytes(HeaderWith(format, 0, positions));
}

size_t BlockBytes(const PageHeader& header) {
  const size_t bytes = PageBytes(header);
  if (!header.ragged()) return bytes;
  const size_t step = std::max(Arena::kAlignment, std::bit_floor(bytes) / 16);
  return (bytes + step - 1) / step * step;
}

size_t PackedBytes(const RecordFormat& format, const RecordView& records, size_t row,
                   std::span<const uint16_t> ranks) {
  const PageHeader header = HeaderWith(format, 0, Page::kPositions);
  if (!format.ragged()) return PageBytes(header);
  return BlockBytes(HeaderOf(header, SubView(records, row, Page::kPositions, format.slots),
                             ranks.subspan(row, Page::kPositions)));
}

void UnpackedPages::Clear() {
  pages_ = 0;
  last_ = nullptr;
}

const UnpackedCounts& UnpackedPages::Of(const Page& page) {
  if (last_ == &page) return counts_[pages_ - 1];
  if (pages_ == counts_.size()) counts_.emplace_back();
  UnpackCounts(page.View(), counts_[pages_]);
  last_ = &page;
  return counts_[pages_++];
}

RecordRows RowBuffer::Rows(const RecordFormat& format) {
  if (memory_ == nullptr) memory_ = std::make_unique_for_overwrite<std::byte[]>(TailBytes(format));
  return Carve(memory_.get(), format.slots);
}

void PrefetchTailRow(const RecordFormat& format, const std::byte* tail, uint32_t index) {
  const size_t slots = format.slots;
  const auto prefetch = [&tail](size_t row_bytes, size_t index) {
    __builtin_prefetch(tail + index * row_bytes, 1);
    __builtin_prefetch(tail + (index + 1) * row_bytes - 1, 1);
    tail += Page::kPositions * row_bytes;
  };
  prefetch(sizeof(int32_t), index);
  prefetch(sizeof(float), index);
  prefetch(slots * sizeof(int32_t), index);
  prefetch(slots * sizeof(float), index);
  prefetch(sizeof(uint16_t), index);
}

bool SameRecord(const RecordFormat& format, const RecordView& records, size_t row,
                const RecordRows& stored, size_t index) {
  const size_t slots = format.slots;
  std::array<float, kMaxTopK> memory;
  const std::span<float> rounded = std::span(memory).first(slots);
  uint16_t used;
  RoundRows(format, records, row, rounded, {&used, 1});
  return records.sampled_ids[row] == stored.sampled_ids[index] &&
         SameBits<float>(records.sampled_log_probs.subspan(row, 1),
                         stored.sampled_log_probs.subspan(index, 1)) &&
         SameBits<float>(rounded, stored.log_probs.subspan(index * slots, slots)) &&
         SameBits<int32_t>(records.ids.subspan(row * slots, used),
                           stored.ids.subspan(index * slots, used));
}

uint32_t Page::PackedPositions(const RecordFormat& format, uint64_t present) {
  const auto end = static_cast<size_t>(std::bit_width(present));
  if (format.ragged()) return static_cast<uint32_t>(end);
  return static_cast<uint32_t>(GroupCount(end) * kGroupPositions);
}

Page::Page(const PageOwner& owner, uint32_t first_position, Arena::Allocation block)
    : owner_(owner),
      block_(std::move(block)),
      first_position_(first_position),
      packed_positions_(block_.bytes().size() < TailBytes(owner.format) ? kPositions : 0) {}

Page::~Page() {
  owner_.budget.Refund(static_cast<int64_t>(Arena::CellBytes(block_.bytes().size())) + kIndexBytes);
}

PageHeader Page::NewHeader() const {
  return HeaderWith(format(), first_position_, packed_positions_);
}

PageHeader Page::header() const {
  PageHeader header = NewHeader();
  if (!format().ragged()) return header;
  PageHeaderBytes bytes;
  std::memcpy(&bytes, block_.bytes().data(), sizeof(bytes));
  header.used_slots = bytes.used_slots;
  header.outside = bytes.outside;
  // Memory may have changed since it was checked.
  return PageBytes(header) <= block_.bytes().size() ? header : NewHeader();
}

PageView Page::View() const { return ViewPage(header(), block_.bytes()); }

RecordRows Page::TailRows() const { return Carve(block_.bytes().data(), format().slots); }

void Page::Unpack(const RecordRows& rows) const {
  ReadRecords(View(), 0, SubRows(rows, 0, packed_positions_, format().slots));
}

absl::Status Page::Check() const {
  if (!packed()) return absl::OkStatus();
  if (corrupt()) return absl::DataLossError("page: its checksum was wrong before");
  // A ragged one may be shorter than its block.
  const absl::StatusOr<PageView> page = OpenPage(block_.bytes().first(PageBytes(header())));
  if (page.ok() && page->header == header()) return absl::OkStatus();
  corrupt_.store(true, std::memory_order_relaxed);
  return page.ok() ? absl::DataLossError("page: its header is another's") : page.status();
}

void Page::Store(uint32_t index, const RecordView& records, size_t row, uint32_t count,
                 std::span<const uint16_t> ranks, const RecordRows& to) {
  // Runs of absent positions.
  for (const uint32_t end = index + count; index < end;) {
    const uint64_t absent = ~present_ & Mask(index, end - index);
    if (absent == 0) return;
    const auto first = static_cast<uint32_t>(std::countr_zero(absent));
    const auto length = static_cast<uint32_t>(std::countr_one(absent >> first));
    row += first - index;
    StoreAbsent(first, records, row, length, ranks, to);
    row += length;
    index = first + length;
  }
}

void Page::StoreAbsent(uint32_t index, const RecordView& records, size_t row, uint32_t count,
                       std::span<const uint16_t> ranks, const RecordRows& to) {
  const size_t slots = format().slots;
  std::array<uint16_t, kPositions> used_slots;
  RoundRows(format(), records, row, to.log_probs.subspan(index * slots, count * slots),
            std::span(used_slots).first(count));
  std::ranges::copy(records.sampled_ids.subspan(row, count), to.sampled_ids.subspan(index).begin());
  std::ranges::copy(records.sampled_log_probs.subspan(row, count),
                    to.sampled_log_probs.subspan(index).begin());
  std::ranges::copy(records.ids.subspan(row * slots, count * slots),
                    to.ids.subspan(index * slots).begin());
  for (uint32_t i = 0; i < count; ++i) {
    const uint16_t used = used_slots[i];
    if (used < slots)
      std::ranges::fill(to.ids.subspan((index + i) * slots + used, slots - used), -1);
    to.ranks[index + i] = ranks[row + i] < used ? ranks[row + i] : kRankOutside;
  }
  const uint64_t positions = Mask(index, count);
  present_ |= positions;
  digest_ += DigestOfRows(first_position_ + index, ViewOf(SubRows(to, index, count, slots)));
}

void Page::Add(uint32_t index, const RecordView& records, size_t row, uint32_t count,
               std::span<const uint16_t> ranks, Arena::Allocation block) {
  if ((Mask(index, count) & ~present_) == 0) return;
  if (packed() && (present_ | Mask(index, count)) == kAll &&
      (present_ == 0 || !format().ragged())) {
    RowBuffer buffer;
    const RecordRows rows = present_ == 0 ? RecordRows() : Rows(buffer);
    if (packed_positions_ < kPositions) {
      block_ = std::move(block);
      packed_positions_ = kPositions;
    }
    if (present_ == 0) {
      AddAll(SubView(records, row, count, format().slots), ranks.subspan(row, count));
    } else {
      Store(index, records, row, count, ranks, rows);
      Encode(rows);
    }
    return;
  }
  if (packed()) {
    Unpack(Carve(block.bytes().data(), format().slots));
    block_ = std::move(block);
    packed_positions_ = 0;
  }
  Store(index, records, row, count, ranks, TailRows());
}

void Page::AddAll(const RecordView& records, std::span<const uint16_t> ranks) {
  RowBuffer buffer;
  const RecordRows rounded = buffer.Rows(format());
  present_ = kAll;
  RecordView recorded = records;
  recorded.log_probs = rounded.log_probs;
  if (format().ragged()) {
    std::array<uint16_t, kPositions> counts;
    const PageHeader header = HeaderOf(NewHeader(), records, ranks, counts);
    RecordView counted = records;
    counted.counts = counts;
    // Without unused slots rows are digested side by side.
    const bool all_used = header.used_slots == kPositions * static_cast<uint32_t>(format().slots);
    if (!all_used) recorded.counts = counts;
    EncodeInto(header, counted, ranks, rounded.log_probs);
    digest_ = DigestOfRows(first_position_, recorded);
    return;
  }
  EncodeInto(NewHeader(), records, ranks, rounded.log_probs);
  if (LosesIds(records.ids, rounded.log_probs, format().slots)) {
    std::ranges::transform(
        records.ids, rounded.log_probs, rounded.ids.begin(),
        [](int32_t id, float log_prob) { return log_prob == kMinusInfinity ? -1 : id; });
    recorded.ids = rounded.ids;
  }
  digest_ = DigestOfRows(first_position_, recorded);
}

std::array<uint16_t, Page::kPositions> Page::PresentRanks(const RecordRows& rows) const {
  std::array<uint16_t, kPositions> ranks;
  for (uint32_t index = 0; index < kPositions; ++index) {
    ranks[index] = (present_ >> index & 1) != 0 ? rows.ranks[index] : kRankAbsent;
  }
  return ranks;
}

void Page::EncodeInto(const PageHeader& header, const RecordView& records,
                      std::span<const uint16_t> ranks, std::span<float> rounded_log_probs) {
  EncodePage(header, records, ranks, block_.bytes().first(PageBytes(header)), rounded_log_probs);
  rows_.Renew();
}

void Page::Encode(const RecordRows& rows) {
  const std::array<uint16_t, kPositions> all_ranks = PresentRanks(rows);
  const std::span ranks = std::span(all_ranks).first(packed_positions_);
  const RecordView records = ViewOf(SubRows(rows, 0, packed_positions_, format().slots));
  EncodeInto(HeaderOf(NewHeader(), records, ranks), records, ranks, {});
}

void Page::Pack(Arena& arena) {
  if (packed()) return;
  const uint32_t positions = PackedPositions(format(), present_);
  const RecordRows rows = TailRows();
  const std::array<uint16_t, kPositions> all_ranks = PresentRanks(rows);
  const std::span ranks = std::span(all_ranks).first(positions);
  const RecordView records = ViewOf(SubRows(rows, 0, positions, format().slots));
  const PageHeader header =
      HeaderOf(HeaderWith(format(), first_position_, positions), records, ranks);
  Arena::Allocation block = arena.Allocate(BlockBytes(header));
  if (block.empty()) return;
  const Arena::Allocation tail = std::exchange(block_, std::move(block));
  packed_positions_ = static_cast<uint8_t>(positions);
  EncodeInto(header, records, ranks, {});
  owner_.budget.Refund(static_cast<int64_t>(Arena::CellBytes(tail.bytes().size()) -
                                            Arena::CellBytes(block_.bytes().size())));
}

RecordRows Page::Rows(RowBuffer& buffer) const {
  if (!packed()) return TailRows();
  const RecordRows rows = buffer.Rows(format());
  Unpack(rows);
  return rows;
}

void Page::Read(uint32_t index, const RecordRows& rows) const {
  if (packed()) {
    ReadRecords(View(), index, rows);
    return;
  }
  const RecordRows from = SubRows(TailRows(), index, rows.ranks.size(), format().slots);
  CopyTo(rows.sampled_ids, from.sampled_ids);
  CopyTo(rows.sampled_log_probs, from.sampled_log_probs);
  CopyTo(rows.ids, from.ids);
  CopyTo(rows.log_probs, from.log_probs);
  CopyTo(rows.ranks, from.ranks);
}

size_t Page::ReadUsed(uint32_t index, const UsedRows& rows, RowBuffer& buffer) const {
  if (packed() && format().ragged()) return ReadUsedSlots(View(), index, rows);
  const size_t slots = format().slots;
  const size_t count = rows.counts.size();
  RecordRows from =
      SubRows(packed() ? buffer.Rows(format()) : TailRows(), packed() ? 0 : index, count, slots);
  if (packed()) {
    if (rows.sampled_ids.empty()) from.sampled_ids = {};
    if (rows.ids.empty()) from.ids = {};
    ReadRecords(View(), index, from);
  }
  CopyTo(rows.sampled_ids, from.sampled_ids);
  CopyTo(rows.sampled_log_probs, from.sampled_log_probs);
  size_t used = 0;
  for (size_t i = 0; i < count; ++i) {
    const std::span<const float> log_probs = from.log_probs.subspan(i * slots, slots);
    const auto end = std::ranges::find(log_probs, kMinusInfinity);
    const auto own = static_cast<size_t>(end - log_probs.begin());
    rows.counts[i] = static_cast<uint16_t>(own);
    if (!rows.ids.empty()) {
      std::ranges::copy(from.ids.subspan(i * slots, own), rows.ids.subspan(used).begin());
    }
    if (!rows.log_probs.empty()) {
      std::ranges::copy(log_probs.first(own), rows.log_probs.subspan(used).begin());
    }
    used += own;
  }
  return used;
}

BehaviorView Page::Behavior(uint32_t index, uint32_t count, UnpackedPages& unpacked) const {
  if (!packed()) {
    const RecordRows rows = SubRows(TailRows(), index, count, format().slots);
    return {.log_probs = rows.log_probs,
            .sampled_log_probs = rows.sampled_log_probs,
            .sampled_ranks = rows.ranks};
  }
  if (!format().ragged()) return GroupedBehavior(index, count);
  const UnpackedCounts& counts = unpacked.Of(*this);
  const PageView page = View();
  const auto* sampled = reinterpret_cast<const float*>(page.sampled_log_probs.data());
  return {.log_probs = {},
          .sampled_log_probs = {sampled + index, count},
          .sampled_ranks = RankSpan(counts.ranks).subspan(index, count),
          .ragged_log_probs = RaggedLogProbsOf(page, counts, index, count)};
}

BehaviorView Page::GroupedBehavior(uint32_t index, uint32_t count) const {
  const size_t slots = format().slots;
  const PageView page = View();
  const size_t group_bytes = GroupBytes(format().encoding, slots);
  const size_t group = index / kGroupPositions;
  const size_t lane = index % kGroupPositions;
  const auto* sampled = reinterpret_cast<const float*>(page.sampled_log_probs.data());
  const auto* ranks = reinterpret_cast<const uint8_t*>(page.ranks.data());
  return {.log_probs = {},
          .sampled_log_probs = {sampled + index, count},
          .sampled_ranks = {ranks + index, count},
          .grouped_log_probs = {.rows = page.log_probs.subspan(
                                    group * group_bytes, GroupCount(lane + count) * group_bytes),
                                .encoding = format().encoding,
                                .first_lane = static_cast<uint8_t>(lane)},
          // The sections lie side by side, ids last.
          .fixed_rows = {.bytes = {page.log_probs.data(), page.ids.data()}, .tag = &rows_}};
}

uint64_t Page::DigestOf(const RecordRows& rows, uint64_t positions) const {
  uint64_t digest = 0;
  for (uint32_t index = 0; positions >> index != 0;) {
    index += static_cast<uint32_t>(std::countr_zero(positions >> index));
    const auto count = static_cast<uint32_t>(std::countr_one(positions >> index));
    digest +=
        DigestOfRows(first_position_ + index, ViewOf(SubRows(rows, index, count, format().slots)));
    index += count;
    if (index == kPositions) break;
  }
  return digest;
}

uint64_t Page::Digest(uint32_t index, uint32_t count) const {
  if (!Check().ok()) return 0;
  if ((present_ & ~Mask(index, count)) == 0) return digest_;
  RowBuffer buffer;
  return DigestOf(Rows(buffer), present_ & Mask(index, count));
}

uint64_t Page::DigestBefore(uint32_t index, uint32_t count) const {
  if ((present_ & ~Mask(index, count)) == 0) return digest_;
  return Digest(index, count);
}

}  // namespace sis
