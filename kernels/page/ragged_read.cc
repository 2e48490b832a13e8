#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/page/encoded_page.h"
#include "kernels/page/page_layout.h"
#include "kernels/page/ragged_order.h"
#include "kernels/page/ragged_page.h"
#include "kernels/records/log_prob_code.h"
#include "kernels/records/packed_values.h"
#include "kernels/records/ragged_log_probs.h"
#include "kernels/records/record_view.h"

namespace sis {
namespace {

PackedValues CountsOf(const PageView& page) {
  return {page.counts, RaggedCountBits(page.header.slots)};
}

PackedValues MultipliersOf(const PageView& page) { return {page.multipliers, kMultiplierBits}; }

PackedValues CodesOf(const PageView& page) {
  return {page.log_probs, LogProbBits(page.header.encoding)};
}

// The ranks of all positions, as they are outside of pages.
class RankReader {
 public:
  explicit RankReader(const PageView& page)
      : ranks_(page.ranks, RaggedRankBits(page.header.slots)),
        outside_(RaggedRankOutside(page.header.slots)) {}

  uint8_t At(size_t position) const {
    const uint32_t rank = ranks_.At(position);
    if (rank < outside_) return static_cast<uint8_t>(rank);
    return rank == outside_ ? kRankOutside : kRankAbsent;
  }

 private:
  PackedValues ranks_;
  uint32_t outside_;
};

// Group after group, from the first one on.
class GroupWalker {
 public:
  explicit GroupWalker(const PageView& page)
      : counts_(CountsOf(page)),
        slots_(static_cast<uint32_t>(page.header.slots)),
        positions_(page.header.positions) {}

  // Of the group at hand.
  const GroupCounts& counts() const { return group_; }
  // Where its slots begin, among all of the page.
  size_t first_slot() const { return first_slot_; }
  // Makes the next group the one at hand.
  void Next() {
    for (const uint8_t count : group_) first_slot_ += count;
    group_ = {};
    const size_t lanes = std::min<size_t>(kGroupPositions, positions_ - next_);
    for (size_t lane = 0; lane < lanes; ++lane) {
      // No more, even of a page that is not what was written.
      group_[lane] = static_cast<uint8_t>(std::min(counts_.At(next_ + lane), slots_));
    }
    next_ += lanes;
  }

 private:
  PackedValues counts_;
  uint32_t slots_;
  size_t positions_;
  size_t next_ = 0;
  size_t first_slot_ = 0;
  GroupCounts group_{};
};

using Multipliers = std::array<uint32_t, kGroupPositions>;

Multipliers MultipliersAt(const PageView& page, size_t first) {
  Multipliers multipliers{};
  if (page.header.encoding != LogProbEncoding::kFixed12) return multipliers;
  const PackedValues values = MultipliersOf(page);
  const size_t lanes = std::min<size_t>(kGroupPositions, page.header.positions - first);
  for (size_t lane = 0; lane < lanes; ++lane) multipliers[lane] = values.At(first + lane);
  return multipliers;
}

// Calls visit(lane, rank, slot) for the slots of the group at hand; `slot` counts those of the
// page.
template <class Visitor>
void VisitSlots(const GroupWalker& walker, const Visitor& visit) {
  size_t slot = walker.first_slot();
  VisitRaggedSlots(walker.counts(), [&](size_t lane, size_t rank) { visit(lane, rank, slot++); });
}

}  // namespace

RaggedLayout LayOutRaggedPage(const PageHeader& header) {
  const size_t n = header.positions;
  const int id_bits = IdBits(header.vocabulary_size);
  const bool steps = header.encoding == LogProbEncoding::kFixed12;
  RaggedLayout layout;
  layout.sampled_log_probs = sizeof(PageHeaderBytes);
  layout.counts = layout.sampled_log_probs + n * sizeof(float);
  layout.ranks = layout.counts + PackedValueBytes(n, RaggedCountBits(header.slots));
  layout.multipliers = layout.ranks + PackedValueBytes(n, RaggedRankBits(header.slots));
  layout.log_probs = layout.multipliers + PackedValueBytes(steps ? n : 0, kMultiplierBits);
  layout.outside_ids =
      layout.log_probs + PackedValueBytes(header.used_slots, LogProbBits(header.encoding));
  layout.ids = layout.outside_ids + PackedValueBytes(header.outside, id_bits);
  layout.end = layout.ids + PackedValueBytes(header.used_slots, id_bits);
  return layout;
}

PageView ViewRaggedPage(const PageHeader& header, std::span<const std::byte> page) {
  const RaggedLayout layout = LayOutRaggedPage(header);
  const auto section = [&](size_t from, size_t to) { return page.subspan(from, to - from); };
  return {.header = header,
          .log_probs = section(layout.log_probs, layout.outside_ids),
          .sampled_log_probs = section(layout.sampled_log_probs, layout.counts),
          .ranks = section(layout.ranks, layout.multipliers),
          .ids = section(layout.ids, layout.end),
          .counts = section(layout.counts, layout.ranks),
          .multipliers = section(layout.multipliers, layout.log_probs),
          .outside_ids = section(layout.outside_ids, layout.ids)};
}

absl::Status CheckRaggedCounts(const PageView& page) {
  const PageHeader& header = page.header;
  const PackedValues counts = CountsOf(page);
  const PackedValues ranks(page.ranks, RaggedRankBits(header.slots));
  size_t used_slots = 0;
  size_t outside = 0;
  uint32_t largest_count = 0;
  uint32_t largest_rank = 0;
  for (size_t i = 0; i < header.positions; ++i) {
    const uint32_t count = counts.At(i);
    const uint32_t rank = ranks.At(i);
    used_slots += count;
    outside += rank == RaggedRankOutside(header.slots) ? 1 : 0;
    largest_count = std::max(largest_count, count);
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

uint32_t RaggedMultiplier(const PageView& page, size_t position) {
  return page.header.encoding == LogProbEncoding::kFixed12 ? MultipliersOf(page).At(position) : 1;
}

void ReadRaggedRecords(const PageView& page, uint32_t first, const RecordRows& rows) {
  const PageHeader& header = page.header;
  const size_t count = rows.ranks.size();
  const size_t slots = header.slots;
  const int id_bits = IdBits(header.vocabulary_size);
  const RankReader ranks(page);
  for (size_t i = 0; i < count; ++i) rows.ranks[i] = ranks.At(first + i);
  if (!rows.sampled_log_probs.empty()) {
    std::memcpy(rows.sampled_log_probs.data(),
                page.sampled_log_probs.data() + first * sizeof(float), count * sizeof(float));
  }
  if (!rows.sampled_ids.empty()) {
    size_t next = 0;
    for (size_t i = 0; i < first; ++i) next += ranks.At(i) == kRankOutside ? 1 : 0;
    const PackedValues outside_ids(page.outside_ids, id_bits);
    for (size_t i = 0; i < count; ++i) {
      // Others are found among the slots.
      rows.sampled_ids[i] =
          rows.ranks[i] == kRankOutside ? static_cast<int32_t>(outside_ids.At(next++)) : -1;
    }
  }
  std::ranges::fill(rows.ids, -1);
  std::ranges::fill(rows.log_probs, kMinusInfinity);
  if (!rows.sampled_ids.empty() || !rows.ids.empty() || !rows.log_probs.empty()) {
    const PackedValues ids(page.ids, id_bits);
    const PackedValues codes = CodesOf(page);
    GroupWalker walker(page);
    for (size_t begin = 0; begin < first + count; begin += kGroupPositions) {
      walker.Next();
      if (begin + kGroupPositions <= first) continue;
      const Multipliers multipliers = MultipliersAt(page, begin);
      VisitEncoding(header.encoding, [&]<LogProbEncoding kEncoding>() {
        VisitSlots(walker, [&](size_t lane, size_t rank, size_t slot) {
          const size_t i = begin + lane - first;  // wraps around before the first
          if (i >= count) return;
          if (!rows.log_probs.empty()) {
            rows.log_probs[i * slots + rank] =
                DecodeLogProb(kEncoding, codes.At(slot), multipliers[lane]);
          }
          if (!rows.ids.empty()) {
            rows.ids[i * slots + rank] = static_cast<int32_t>(ids.At(slot));
          }
          if (!rows.sampled_ids.empty() && rows.ranks[i] == rank) {
            rows.sampled_ids[i] = static_cast<int32_t>(ids.At(slot));
          }
        });
      });
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (rows.ranks[i] == kRankAbsent) WriteAbsent(SubRows(rows, i, 1, slots));
  }
}

size_t ReadUsedSlots(const PageView& page, uint32_t first, const UsedRows& rows) {
  const PageHeader& header = page.header;
  const size_t end = first + rows.counts.size();
  const int id_bits = IdBits(header.vocabulary_size);
  const PackedValues ids(page.ids, id_bits);
  const PackedValues codes = CodesOf(page);
  if (!rows.sampled_log_probs.empty()) {
    std::memcpy(rows.sampled_log_probs.data(),
                page.sampled_log_probs.data() + first * sizeof(float),
                rows.counts.size() * sizeof(float));
  }
  const RankReader ranks(page);
  const PackedValues outside_ids(page.outside_ids, id_bits);
  size_t next_outside = 0;
  for (size_t i = 0; i < first && !rows.sampled_ids.empty(); ++i) {
    next_outside += ranks.At(i) == kRankOutside ? 1 : 0;
  }
  size_t used = 0;
  GroupWalker walker(page);
  for (size_t begin = 0; begin < end; begin += kGroupPositions) {
    walker.Next();
    if (begin + kGroupPositions <= first) continue;
    const size_t first_lane = std::max<size_t>(begin, first) - begin;
    const size_t end_lane = std::min(begin + kGroupPositions, end) - begin;
    std::array<size_t, kGroupPositions> to;  // where each position's slots go
    for (size_t lane = first_lane; lane < end_lane; ++lane) {
      to[lane] = used;
      rows.counts[begin + lane - first] = walker.counts()[lane];
      used += walker.counts()[lane];
    }
    if (!rows.ids.empty()) {
      VisitSlots(walker, [&](size_t lane, size_t rank, size_t slot) {
        if (lane < first_lane || lane >= end_lane) return;
        rows.ids[to[lane] + rank] = static_cast<int32_t>(ids.At(slot));
      });
    }
    if (!rows.log_probs.empty()) {
      const Multipliers multipliers = MultipliersAt(page, begin);
      VisitEncoding(header.encoding, [&]<LogProbEncoding kEncoding>() {
        VisitSlots(walker, [&](size_t lane, size_t rank, size_t slot) {
          if (lane < first_lane || lane >= end_lane) return;
          rows.log_probs[to[lane] + rank] =
              DecodeLogProb(kEncoding, codes.At(slot), multipliers[lane]);
        });
      });
    }
    if (rows.sampled_ids.empty()) continue;
    for (size_t lane = first_lane; lane < end_lane; ++lane) {
      const uint8_t rank = ranks.At(begin + lane);
      int32_t& id = rows.sampled_ids[begin + lane - first];
      if (rank == kRankOutside) {
        id = static_cast<int32_t>(outside_ids.At(next_outside++));
      } else if (rank >= walker.counts()[lane]) {
        id = -1;  // not of what was written
      } else {
        id = static_cast<int32_t>(
            ids.At(walker.first_slot() + RaggedSlot(walker.counts().data(), lane, rank)));
      }
    }
  }
  return used;
}

void UnpackCounts(const PageView& page, UnpackedCounts& into) {
  const PageHeader& header = page.header;
  const size_t positions = header.positions;
  const size_t groups = GroupCount(positions);
  into.counts.resize(groups * kGroupPositions);
  UnpackToBytes(page.counts, RaggedCountBits(header.slots), into.counts);
  std::fill(into.counts.begin() + static_cast<ptrdiff_t>(positions), into.counts.end(), 0);
  for (uint8_t& count : into.counts) {
    count = std::min(count, static_cast<uint8_t>(header.slots));
  }
  into.begins.resize(groups + 1);
  into.begins[0] = 0;
  for (size_t group = 0; group < groups; ++group) {
    const auto counts = std::span(into.counts).subspan(group * kGroupPositions, kGroupPositions);
    uint32_t slots = 0;
    for (const uint8_t count : counts) slots += count;
    if (slots > header.used_slots - into.begins[group]) {
      std::ranges::fill(counts, 0);
      slots = 0;
    }
    into.begins[group + 1] = into.begins[group] + slots;
  }
  const auto outside = static_cast<uint8_t>(RaggedRankOutside(header.slots));
  into.ranks.resize(groups * kGroupPositions);
  UnpackToBytes(page.ranks, RaggedRankBits(header.slots), into.ranks);
  into.ranks.resize(positions);
  for (uint8_t& rank : into.ranks) {
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
