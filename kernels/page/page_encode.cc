#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/container/fixed_array.h"
#include "kernels/numerics/crc32c.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/page/encoded_page.h"
#include "kernels/page/page_layout.h"
#include "kernels/page/ragged_page.h"
#include "kernels/records/log_probs.h"
#include "kernels/records/record_view.h"
#include "kernels/records/simd_ids.h"

namespace sis {
namespace {

// More than these are kept on the heap while a page is encoded.
constexpr size_t kFewPositions = 64;
constexpr size_t kFewRows = 24;

// Of positions: those of the last group that are unused are zeros.
template <typename T>
void Write(std::span<const T> values, std::span<std::byte> to) {
  std::memcpy(to.data(), values.data(), values.size_bytes());
  std::ranges::fill(to.subspan(values.size_bytes()), std::byte{0});
}

void EncodeIds(const PageHeader& header, const RecordView& records,
               std::span<const uint16_t> used_slots, std::span<const uint16_t> ranks,
               bool all_present, std::span<std::byte> to) {
  const int bits = IdBits(header.vocabulary_size);
  const size_t row_bytes = PackedRowBytes(bits);
  const size_t slots = header.slots;
  if (all_present && header.positions % kGroupPositions == 0 &&
      PackIdsOnVectors(records, header.slots, used_slots, bits, to)) {
    return;
  }
  absl::FixedArray<RowValues, kFewRows> rows(IdRows(header));
  for (size_t first = 0; first < header.positions; first += kGroupPositions) {
    for (RowValues& row : rows) row.fill(0);
    const size_t end = std::min<size_t>(header.positions, first + kGroupPositions);
    for (size_t i = first; i < end; ++i) {
      if (ranks[i] == kRankAbsent) continue;
      rows[0][i - first] = records.sampled_ids[i];
      for (size_t slot = 0; slot < used_slots[i]; ++slot) {
        rows[1 + slot][i - first] = records.ids[i * slots + slot];
      }
    }
    for (const RowValues& row : rows) {
      PackRow(row, bits, to.first(row_bytes));
      to = to.subspan(row_bytes);
    }
  }
}

void EncodeFixedSections(const PageHeader& header, const RecordView& records,
                         std::span<const uint16_t> ranks, std::span<std::byte> page,
                         std::span<float> rounded_log_probs) {
  const PageLayout layout = LayOutPage(header);
  const auto section = [&](PageSection part) { return page.subspan(part.begin, part.bytes); };
  const size_t positions = header.positions;
  const size_t slots = header.slots;
  std::span<const float> log_probs = records.log_probs;
  std::span<const float> sampled_log_probs = records.sampled_log_probs;
  std::vector<float> present_log_probs;
  std::vector<float> present_sampled_log_probs;
  absl::FixedArray<uint8_t, kFewPositions> stored_ranks(positions);
  const auto low_byte = [](uint16_t rank) { return static_cast<uint8_t>(rank); };
  std::ranges::transform(ranks, stored_ranks.begin(), low_byte);
  const bool all_present =
      std::memchr(stored_ranks.data(), low_byte(kRankAbsent), positions) == nullptr;
  if (!all_present) {
    present_log_probs.assign(log_probs.begin(), log_probs.end());
    present_sampled_log_probs.assign(sampled_log_probs.begin(), sampled_log_probs.end());
    for (size_t i = 0; i < positions; ++i) {
      if (ranks[i] != kRankAbsent) continue;
      std::ranges::fill(std::span(present_log_probs).subspan(i * slots, slots), kMinusInfinity);
      present_sampled_log_probs[i] = 0;
    }
    log_probs = present_log_probs;
    sampled_log_probs = present_sampled_log_probs;
  }
  absl::FixedArray<uint16_t, kFewPositions> used_slots(positions);
  EncodeBehaviorLogProbs(header.encoding, log_probs, header.slots, std::span(used_slots),
                         section(layout.log_probs), rounded_log_probs);
  for (size_t i = 0; i < positions; ++i) {
    if (ranks[i] < slots && ranks[i] >= used_slots[i]) stored_ranks[i] = low_byte(kRankOutside);
  }
  Write<float>(sampled_log_probs, section(layout.sampled_log_probs));
  Write<uint8_t>(std::span<const uint8_t>(stored_ranks), section(layout.ranks));
  EncodeIds(header, records, std::span<const uint16_t>(used_slots), ranks, all_present,
            section(layout.ids));
}

}  // namespace

void EncodePage(const PageHeader& header, const RecordView& records,
                std::span<const uint16_t> ranks, std::span<std::byte> page,
                std::span<float> rounded_log_probs) {
  if (header.ragged()) {
    EncodeRaggedSections(header, records, ranks, page, rounded_log_probs);
  } else {
    EncodeFixedSections(header, records, ranks, page, rounded_log_probs);
  }
  PageHeaderBytes bytes{.magic = kPageMagic,
                        .crc32c = 0,
                        .version = static_cast<uint8_t>(header.version),
                        .encoding = static_cast<uint8_t>(header.encoding),
                        .slots = static_cast<uint16_t>(header.slots),
                        .vocabulary_size = header.vocabulary_size,
                        .first_position = header.first_position,
                        .positions = header.positions,
                        .used_slots = header.used_slots,
                        .outside = header.outside};
  std::memcpy(page.data(), &bytes, sizeof bytes);
  bytes.crc32c = ExtendCrc32c(0, page.subspan(kChecksummedFrom));
  std::memcpy(page.data(), &bytes, sizeof bytes);
}

}  // namespace sis
