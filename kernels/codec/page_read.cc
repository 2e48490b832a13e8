#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/codec/log_probs.h"
#include "kernels/codec/page.h"
#include "kernels/codec/page_layout.h"
#include "kernels/decide.h"

namespace sis {

PageView ViewPage(const PageHeader& header, std::span<const std::byte> page) {
  const PageLayout layout = LayOutPage(header);
  const auto section = [&](size_t from, size_t to) { return page.subspan(from, to - from); };
  return {.header = header,
          .log_probs = section(layout.log_probs, layout.sampled_log_probs),
          .sampled_log_probs = section(layout.sampled_log_probs, layout.ranks),
          .ranks = section(layout.ranks, layout.ids),
          .ids = section(layout.ids, layout.end)};
}

void ReadRecords(const PageView& page, uint32_t first, const RecordRows& rows) {
  const PageHeader& header = page.header;
  const size_t count = rows.ranks.size();
  const size_t slots = header.slots;
  std::memcpy(rows.sampled_log_probs.data(), page.sampled_log_probs.data() + first * sizeof(float),
              count * sizeof(float));
  std::memcpy(rows.ranks.data(), page.ranks.data() + first, count);

  const int bits = IdBits(header.vocabulary_size);
  const size_t row_bytes = PackedRowBytes(bits);
  const size_t group_bytes = GroupBytes(header.encoding, header.slots);
  for (size_t i = 0; i < count;) {
    const size_t group = (first + i) / kGroupPositions;
    const size_t lane = (first + i) % kGroupPositions;
    const size_t lanes = std::min(kGroupPositions - lane, count - i);
    const auto ids = page.ids.subspan(group * IdGroupBytes(header), IdGroupBytes(header));
    const GroupDecoder decoder(header.encoding,
                               page.log_probs.subspan(group * group_bytes, group_bytes));
    const RowValues sampled = UnpackRow(ids.first(row_bytes), bits);
    for (size_t j = 0; j < lanes; ++j) {
      rows.sampled_ids[i + j] = static_cast<int32_t>(sampled[lane + j]);
    }
    for (size_t rank = 0; rank < slots; ++rank) {
      const RowValues ranked = UnpackRow(ids.subspan((1 + rank) * row_bytes, row_bytes), bits);
      const auto log_probs = decoder.Row(rank);
      for (size_t j = 0; j < lanes; ++j) {
        const size_t to = (i + j) * slots + rank;
        const float log_prob = log_probs[lane + j];
        rows.log_probs[to] = log_prob;
        rows.ids[to] = log_prob == kMinusInfinity ? -1 : static_cast<int32_t>(ranked[lane + j]);
      }
    }
    i += lanes;
  }
  for (size_t i = 0; i < count; ++i) {
    if (rows.ranks[i] != kRankAbsent) continue;
    rows.sampled_ids[i] = -1;
    rows.sampled_log_probs[i] = std::numeric_limits<float>::quiet_NaN();
    std::ranges::fill(rows.ids.subspan(i * slots, slots), -1);
    std::ranges::fill(rows.log_probs.subspan(i * slots, slots), kMinusInfinity);
  }
}

}  // namespace sis
