#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/numerics/log_prob.h"
#include "kernels/page/encoded_page.h"
#include "kernels/page/page_layout.h"
#include "kernels/page/ragged_page.h"
#include "kernels/records/log_probs.h"
#include "kernels/records/record_view.h"
#include "kernels/records/simd_ids.h"
#include "kernels/records/simd_transpose.h"

namespace sis {

PageView ViewPage(const PageHeader& header, std::span<const std::byte> page) {
  if (header.ragged()) return ViewRaggedPage(header, page);
  const PageLayout layout = LayOutPage(header);
  const auto section = [&](size_t from, size_t to) { return page.subspan(from, to - from); };
  return {.header = header,
          .log_probs = section(layout.log_probs, layout.sampled_log_probs),
          .sampled_log_probs = section(layout.sampled_log_probs, layout.ranks),
          .ranks = section(layout.ranks, layout.ids),
          .ids = section(layout.ids, layout.end)};
}

namespace {

// One group's values of all ranks, position by position.
template <typename T>
using Ranks = std::array<std::array<T, kGroupPositions>, kMaxTopK>;

// From rank by rank to position by position: the lanes [lane, lane + lanes).
template <typename From, typename To>
void Transpose(std::span<const std::array<From, kGroupPositions>> ranks, size_t lane, size_t lanes,
               std::span<To> to) {
  const size_t slots = ranks.size();
  if (lanes == kGroupPositions &&
      TransposeOnVectors(std::as_bytes(ranks), std::as_writable_bytes(to))) {
    return;
  }
  for (size_t j = 0; j < lanes; ++j) {
    for (size_t rank = 0; rank < slots; ++rank) {
      to[j * slots + rank] = static_cast<To>(ranks[rank][lane + j]);
    }
  }
}

// Reads the slots of one group.
class SlotReader {
 public:
  SlotReader(const PageView& page, size_t group)
      : slots_(page.header.slots),
        bits_(IdBits(page.header.vocabulary_size)),
        ids_(page.ids.subspan(group * IdGroupBytes(page.header), IdGroupBytes(page.header))),
        log_probs_(page.header.encoding,
                   page.log_probs.subspan(group * GroupBytes(page.header.encoding, slots_),
                                          GroupBytes(page.header.encoding, slots_))) {}

  void ReadSampledIds(size_t lane, std::span<int32_t> ids) const {
    const RowValues row = UnpackRow(ids_, bits_);
    std::ranges::copy(std::span(row).subspan(lane, ids.size()), ids.begin());
  }
  // The slots of the lanes [lane, lane + lanes) into ids and log_probs [lanes, K], either of which
  // may be left out.
  void ReadSlots(size_t lane, size_t lanes, std::span<int32_t> ids,
                 std::span<float> log_probs) const {
    Ranks<float> memory;
    const auto ranks = std::span(memory).first(slots_);
    const bool only_ids = log_probs.empty();
    log_probs_.Rows(only_ids ? slots_ - 1 : 0, only_ids ? ranks.last(1) : ranks);
    if (!only_ids) Transpose<float>(ranks, lane, lanes, log_probs);
    if (ids.empty()) return;
    Ranks<uint32_t> id_memory;
    const std::span<RowValues> id_ranks = std::span(id_memory).first(slots_);
    const std::span<const std::byte> id_rows = ids_.subspan(PackedRowBytes(bits_));
    if (!UnpackRowsOnVectors(id_rows, bits_, id_ranks)) UnpackRows(id_rows, bits_, id_ranks);
    Transpose<uint32_t>(id_ranks, lane, lanes, ids);
    // Unused slots come last: mostly there are none.
    if (!std::ranges::count(ranks.back(), kMinusInfinity)) return;
    if (only_ids) log_probs_.Rows(0, ranks);
    for (size_t j = 0; j < lanes; ++j) {
      for (size_t rank = slots_; rank-- > 0 && ranks[rank][lane + j] == kMinusInfinity;) {
        ids[j * slots_ + rank] = -1;
      }
    }
  }

 private:
  size_t slots_;
  int bits_;
  std::span<const std::byte> ids_;
  GroupDecoder log_probs_;
};

}  // namespace

void ReadRecords(const PageView& page, uint32_t first, const RecordRows& rows) {
  if (page.header.ragged()) return ReadRaggedRecords(page, first, rows);
  const size_t count = rows.ranks.size();
  const size_t slots = page.header.slots;
  if (!rows.sampled_log_probs.empty()) {
    std::memcpy(rows.sampled_log_probs.data(),
                page.sampled_log_probs.data() + first * sizeof(float), count * sizeof(float));
  }
  std::memcpy(rows.ranks.data(), page.ranks.data() + first, count);
  for (size_t i = 0; i < count;) {
    const size_t lane = (first + i) % kGroupPositions;
    const size_t lanes = std::min(kGroupPositions - lane, count - i);
    const SlotReader reader(page, (first + i) / kGroupPositions);
    if (!rows.sampled_ids.empty()) {
      reader.ReadSampledIds(lane, rows.sampled_ids.subspan(i, lanes));
    }
    if (!rows.ids.empty() || !rows.log_probs.empty()) {
      const auto part = [&](auto array) {
        return array.empty() ? array : array.subspan(i * slots, lanes * slots);
      };
      reader.ReadSlots(lane, lanes, part(rows.ids), part(rows.log_probs));
    }
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
