#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/numerics/log_prob.h"
#include "kernels/page/encoded_page.h"
#include "kernels/page/page_layout.h"
#include "kernels/page/ragged_page.h"
#include "kernels/records/packed_row.h"
#include "kernels/records/rank_span.h"
#include "kernels/records/simd_read_groups.h"

namespace sis {

namespace {

// One position after the other, of a whole group.
template <typename T>
using GroupValues = std::array<T, size_t{kGroupPositions} * kMaxTopKOfByteRanks>;

// What `read` makes of a group, of the lanes from `lane` on, into `to` [n, K].
template <typename T, class Read>
void ReadLanes(size_t lane, size_t slots, std::span<T> to, const Read& read) {
  if (to.size() == kGroupPositions * slots) return read(to);
  GroupValues<T> memory;
  const std::span<T> group = std::span(memory).first(kGroupPositions * slots);
  read(group);
  std::ranges::copy(group.subspan(lane * slots, to.size()), to.begin());
}

// The slots of n positions of one group from `first` on, into ids and log_probs [n, K], either of
// which may be left out.
void ReadSlots(const PageView& page, size_t first, size_t n, std::span<int32_t> ids,
               std::span<float> log_probs) {
  const PageHeader& header = page.header;
  const size_t slots = header.slots;
  const size_t group = first / kGroupPositions;
  const size_t lane = first % kGroupPositions;
  const size_t group_bytes = GroupBytes(header.encoding, slots);
  const std::span<const std::byte> rows = page.log_probs.subspan(group * group_bytes, group_bytes);
  const auto read_log_probs = [&](std::span<float> to) {
    ReadLanes(lane, slots, to,
              [&](std::span<float> whole) { ReadLogProbGroup(header.encoding, rows, whole); });
  };
  if (!log_probs.empty()) read_log_probs(log_probs);
  if (ids.empty()) return;
  const int bits = IdBits(header.vocabulary_size);
  ReadLanes(lane, slots, ids, [&](std::span<int32_t> whole) {
    const size_t sampled = group * IdGroupBytes(header);
    ReadIdGroup(page.ids.subspan(sampled + PackedRowBytes(bits)), bits, whole);
  });
  // Unused slots come last: mostly there are none.
  if (UsesEverySlot(header.encoding, rows, slots)) return;
  GroupValues<float> memory;
  if (log_probs.empty()) {
    log_probs = std::span(memory).first(n * slots);
    read_log_probs(log_probs);
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t end = (i + 1) * slots; end-- > i * slots && log_probs[end] == kMinusInfinity;) {
      ids[end] = -1;
    }
  }
}

}  // namespace

void ReadRecords(const PageView& page, uint32_t first, const RecordRows& rows) {
  if (page.header.ragged()) return ReadRaggedRecords(page, first, rows);
  const size_t count = rows.ranks.size();
  const size_t slots = page.header.slots;
  if (!rows.sampled_log_probs.empty()) {
    std::memcpy(rows.sampled_log_probs.data(),
                page.sampled_log_probs.data() + first * sizeof(float), count * sizeof(float));
  }
  const auto* ranks = reinterpret_cast<const uint8_t*>(page.ranks.data()) + first;
  for (size_t i = 0; i < count; ++i) rows.ranks[i] = RankOfByte(ranks[i]);
  for (size_t i = 0; i < count;) {
    const size_t lane = (first + i) % kGroupPositions;
    const size_t lanes = std::min(kGroupPositions - lane, count - i);
    const RecordRows part = SubRows(rows, i, lanes, slots);
    if (!part.sampled_ids.empty()) {
      const RowValues ids =
          UnpackRow(page.ids.subspan((first + i) / kGroupPositions * IdGroupBytes(page.header)),
                    IdBits(page.header.vocabulary_size));
      std::ranges::copy(std::span(ids).subspan(lane, lanes), part.sampled_ids.begin());
    }
    ReadSlots(page, first + i, lanes, part.ids, part.log_probs);
    i += lanes;
  }
  for (size_t i = 0; i < count; ++i) {
    if (rows.ranks[i] == kRankAbsent) WriteAbsent(SubRows(rows, i, 1, slots));
  }
}

RecordRows SubRows(const RecordRows& rows, size_t first, size_t count, size_t slots) {
  const auto part = [&](auto array, size_t width) {
    return array.empty() ? array : array.subspan(first * width, count * width);
  };
  return {.sampled_ids = part(rows.sampled_ids, 1),
          .sampled_log_probs = part(rows.sampled_log_probs, 1),
          .ids = part(rows.ids, slots),
          .log_probs = part(rows.log_probs, slots),
          .ranks = part(rows.ranks, 1)};
}

void WriteAbsent(const RecordRows& rows) {
  std::ranges::fill(rows.sampled_ids, -1);
  std::ranges::fill(rows.sampled_log_probs, std::numeric_limits<float>::quiet_NaN());
  std::ranges::fill(rows.ids, -1);
  std::ranges::fill(rows.log_probs, kMinusInfinity);
}

}  // namespace sis
