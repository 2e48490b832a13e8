#include <algorithm>
#include <array>
#include <cstring>

#include "absl/container/fixed_array.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/page/encoded_page.h"
#include "kernels/page/page_layout.h"
#include "kernels/page/ragged_page.h"
#include "kernels/records/log_prob_code.h"
#include "kernels/records/packed_row.h"
#include "kernels/records/packed_values.h"
#include "kernels/records/ragged_log_probs.h"
#include "kernels/records/record_view.h"
#include "kernels/records/simd_read_groups.h"

namespace sis {
namespace {

// Values of a section that stand side by side, at most those of a group's slots.
class UnpackedValues {
 public:
  // The values [begin, end) of the section, `width` bits each.
  void Unpack(std::span<const std::byte> section, int width, size_t begin, size_t end) {
    // Every sixteenth one begins a byte.
    begin_ = begin / kGroupPositions * kGroupPositions;
    const size_t row_bytes = PackedRowBytes(width);
    const auto bytes = section.subspan(begin_ / kGroupPositions * row_bytes);
    const std::span rows = std::span(rows_).first(GroupCount(end - begin_));
    const size_t whole = std::min(rows.size(), bytes.size() / row_bytes);
    UnpackRowsOnVectors(bytes, width, rows.first(whole));
    if (whole == rows.size()) return;
    std::array<std::byte, PackedRowBytes(32)> last{};
    std::ranges::copy(bytes.subspan(whole * row_bytes), last.begin());
    UnpackRowsOnVectors(last, width, rows.last(1));
  }
  uint32_t At(size_t i) const { return rows_[(i - begin_) / kGroupPositions][i % kGroupPositions]; }

 private:
  size_t begin_ = 0;
  std::array<RowValues, kMaxTopK + 1> rows_;
};

// Puts the used slots of positions from `first` on to where each position's begin, into ids and
// log_probs, either of which may be left out.
void ReadSlots(const PageView& page, const UnpackedCounts& unpacked, size_t first,
               std::span<const size_t> begins, std::span<int32_t> ids, std::span<float> log_probs) {
  if (ids.empty() && log_probs.empty()) return;
  const PageHeader& header = page.header;
  const PackedValues packed_multipliers(page.multipliers, kMultiplierBits);
  const size_t end = first + begins.size();
  UnpackedValues slot_ids;
  UnpackedValues codes;
  for (size_t group = first / kGroupPositions; group * kGroupPositions < end; ++group) {
    const size_t begin = unpacked.begins[group];
    const size_t end_slot = unpacked.begins[group + 1];
    if (begin == end_slot) continue;
    GroupCounts counts;
    RowValues multipliers;
    for (size_t lane = 0; lane < kGroupPositions; ++lane) {
      counts[lane] = unpacked.counts[group * kGroupPositions + lane];
      multipliers[lane] = packed_multipliers.At(group * kGroupPositions + lane);
    }
    if (!ids.empty()) slot_ids.Unpack(page.ids, IdBits(header.vocabulary_size), begin, end_slot);
    if (!log_probs.empty()) {
      codes.Unpack(page.log_probs, LogProbBits(header.encoding), begin, end_slot);
    }
    const size_t group_first = group * kGroupPositions - first;  // wraps around before the first
    if (log_probs.empty() && group_first <= begins.size() &&
        begins.size() - group_first >= kGroupPositions) {
      size_t slot = begin;
      VisitRaggedSlots(counts, [&, group_begins = &begins[group_first]](size_t lane, size_t rank) {
        ids[group_begins[lane] + rank] = static_cast<int32_t>(slot_ids.At(slot++));
      });
      continue;
    }
    VisitEncoding(header.encoding, [&]<LogProbEncoding kEncoding>() {
      size_t slot = begin;
      VisitRaggedSlots(counts, [&](size_t lane, size_t rank) {
        const size_t from = slot++;
        const size_t i = group_first + lane;
        if (i >= begins.size()) return;
        if (!ids.empty()) ids[begins[i] + rank] = static_cast<int32_t>(slot_ids.At(from));
        if (!log_probs.empty()) {
          log_probs[begins[i] + rank] = DecodeLogProb(kEncoding, codes.At(from), multipliers[lane]);
        }
      });
    });
  }
}

// Those of positions from `first` on; -1 where there is none. The other ids are where ReadSlots put
// them, if they are there.
void ReadSampledIds(const PageView& page, const UnpackedCounts& unpacked, size_t first,
                    std::span<const size_t> begins, std::span<const int32_t> ids,
                    std::span<int32_t> sampled_ids) {
  const int bits = IdBits(page.header.vocabulary_size);
  const PackedValues packed_ids(page.ids, bits);
  const PackedValues outside_ids(page.outside_ids, bits);
  auto next_outside =
      static_cast<size_t>(std::ranges::count(std::span(unpacked.ranks).first(first), kRankOutside));
  for (size_t i = 0; i < sampled_ids.size(); ++i) {
    const size_t position = first + i;
    const uint16_t rank = unpacked.ranks[position];
    if (rank == kRankOutside) {
      sampled_ids[i] = static_cast<int32_t>(outside_ids.At(next_outside++));
    } else if (rank >= unpacked.counts[position]) {
      sampled_ids[i] = -1;  // absent, or not of what was written
    } else if (!ids.empty()) {
      sampled_ids[i] = ids[begins[i] + rank];
    } else {
      const size_t group = position / kGroupPositions;
      const uint32_t slot =
          RaggedSlot(&unpacked.counts[group * kGroupPositions], position % kGroupPositions, rank);
      sampled_ids[i] = static_cast<int32_t>(packed_ids.At(unpacked.begins[group] + slot));
    }
  }
}

void ReadSampledLogProbs(const PageView& page, size_t first, std::span<float> log_probs) {
  if (log_probs.empty()) return;
  std::memcpy(log_probs.data(), page.sampled_log_probs.data() + first * sizeof(float),
              log_probs.size_bytes());
}

}  // namespace

absl::Status CheckRaggedCounts(const PageView& page) {
  const PageHeader& header = page.header;
  absl::InlinedVector<uint16_t, UnpackedCounts::kFewPositions> values(GroupCount(header.positions) *
                                                                      kGroupPositions);
  const auto positions = std::span(values).first(header.positions);
  UnpackToHalves(page.counts, RaggedCountBits(header.slots), values);
  uint32_t used_slots = 0;
  uint16_t largest_count = 0;
  for (const uint16_t count : positions) {
    used_slots += count;
    largest_count = std::max(largest_count, count);
  }
  UnpackToHalves(page.ranks, RaggedRankBits(header.slots), values);
  uint32_t outside = 0;
  uint16_t largest_rank = 0;
  for (const uint16_t rank : positions) {
    outside += rank == RaggedRankOutside(header.slots) ? 1 : 0;
    largest_rank = std::max(largest_rank, rank);
  }
  if (largest_count > static_cast<uint32_t>(header.slots)) {
    return absl::DataLossError(
        absl::StrCat("page: counts: ", largest_count, " is above slots ", header.slots));
  }
  if (largest_rank > RaggedRankAbsent(header.slots)) {
    return absl::DataLossError(
        absl::StrCat("page: ranks: ", largest_rank, " is above ", RaggedRankAbsent(header.slots)));
  }
  if (used_slots != header.used_slots || outside != header.outside) {
    return absl::DataLossError(absl::StrCat("page: ", used_slots, " slots and ", outside,
                                            " tokens outside, but its header says ",
                                            header.used_slots, " and ", header.outside));
  }
  return absl::OkStatus();
}

void ReadRaggedRecords(const PageView& page, uint32_t first, const RecordRows& rows) {
  const size_t slots = page.header.slots;
  UnpackedCounts unpacked;
  UnpackCounts(page, unpacked);
  absl::FixedArray<size_t, UnpackedCounts::kFewPositions> begins(rows.ranks.size());
  for (size_t i = 0; i < begins.size(); ++i) begins[i] = i * slots;
  std::ranges::copy(std::span(unpacked.ranks).subspan(first, begins.size()), rows.ranks.begin());
  ReadSampledLogProbs(page, first, rows.sampled_log_probs);
  std::ranges::fill(rows.ids, -1);
  std::ranges::fill(rows.log_probs, kMinusInfinity);
  ReadSlots(page, unpacked, first, begins, rows.ids, rows.log_probs);
  ReadSampledIds(page, unpacked, first, begins, rows.ids, rows.sampled_ids);
  for (size_t i = 0; i < begins.size(); ++i) {
    if (rows.ranks[i] == kRankAbsent) WriteAbsent(SubRows(rows, i, 1, slots));
  }
}

size_t ReadUsedSlots(const PageView& page, uint32_t first, const UsedRows& rows) {
  UnpackedCounts unpacked;
  UnpackCounts(page, unpacked);
  absl::FixedArray<size_t, UnpackedCounts::kFewPositions> begins(rows.counts.size());
  size_t used = 0;
  for (size_t i = 0; i < begins.size(); ++i) {
    begins[i] = used;
    rows.counts[i] = unpacked.counts[first + i];
    used += rows.counts[i];
  }
  ReadSampledLogProbs(page, first, rows.sampled_log_probs);
  ReadSlots(page, unpacked, first, begins, rows.ids, rows.log_probs);
  ReadSampledIds(page, unpacked, first, begins, rows.ids, rows.sampled_ids);
  return used;
}

void UnpackCounts(const PageView& page, UnpackedCounts& into) {
  const PageHeader& header = page.header;
  const size_t positions = header.positions;
  const size_t groups = GroupCount(positions);
  into.counts.resize(groups * kGroupPositions);
  UnpackToHalves(page.counts, RaggedCountBits(header.slots), into.counts);
  std::fill(into.counts.begin() + static_cast<ptrdiff_t>(positions), into.counts.end(), 0);
  for (uint16_t& count : into.counts) {
    count = std::min(count, static_cast<uint16_t>(header.slots));
  }
  into.begins.resize(groups + 1);
  into.begins[0] = 0;
  for (size_t group = 0; group < groups; ++group) {
    const auto counts = std::span(into.counts).subspan(group * kGroupPositions, kGroupPositions);
    uint32_t slots = 0;
    for (const uint16_t count : counts) slots += count;
    if (slots > header.used_slots - into.begins[group]) {
      std::ranges::fill(counts, 0);
      slots = 0;
    }
    into.begins[group + 1] = into.begins[group] + slots;
  }
  const auto outside = static_cast<uint16_t>(RaggedRankOutside(header.slots));
  into.ranks.resize(groups * kGroupPositions);
  UnpackToHalves(page.ranks, RaggedRankBits(header.slots), into.ranks);
  into.ranks.resize(positions);
  for (uint16_t& rank : into.ranks) {
    rank = rank < outside ? rank : rank == outside ? kRankOutside : kRankAbsent;
  }
}

RaggedLogProbs RaggedLogProbsOf(const PageView& page, const UnpackedCounts& unpacked, size_t first,
                                size_t count) {
  const size_t group = first / kGroupPositions;
  const size_t groups = GroupCount(first % kGroupPositions + count);
  const size_t before = PackedValueBytes(group * kGroupPositions, kMultiplierBits);
  return {.counts =
              std::span(unpacked.counts).subspan(group * kGroupPositions, groups * kGroupPositions),
          .begins = std::span(unpacked.begins).subspan(group, groups + 1),
          .multipliers = page.multipliers.subspan(std::min(before, page.multipliers.size())),
          .codes = page.log_probs,
          .encoding = page.header.encoding,
          .first_lane = static_cast<uint8_t>(first % kGroupPositions)};
}

}  // namespace sis
