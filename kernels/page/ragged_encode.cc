#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "kernels/numerics/log_prob.h"
#include "kernels/page/encoded_page.h"
#include "kernels/page/page_layout.h"
#include "kernels/page/ragged_page.h"
#include "kernels/records/log_prob_code.h"
#include "kernels/records/log_probs.h"
#include "kernels/records/packed_value_writer.h"
#include "kernels/records/simd_ragged_slots.h"

namespace sis {
namespace {

// Of the slots of each position, those that can be encoded.
class EncodedSlots {
 public:
  EncodedSlots(const PageHeader& header, const RecordView& records)
      : encoding_(header.encoding),
        lowest_(LowestLogProb(header.encoding)),
        slots_(header.slots),
        records_(records) {}

  uint16_t operator[](size_t i) const {
    const float* row = records_.log_probs.data() + i * slots_;
    if (records_.counts.empty()) return FitRow(encoding_, {row, slots_}).used;
    uint16_t used = records_.counts[i];
    while (used > 0 && row[used - 1] < lowest_) --used;
    return used;
  }

 private:
  const LogProbEncoding encoding_;
  const float lowest_;
  const size_t slots_;
  const RecordView& records_;
};

struct PackedGroup {
  GroupCounts counts;  // 0 beyond the lanes
  std::array<uint32_t, kGroupPositions> multipliers;
  const float* log_probs;  // [lanes, slots]
  const int32_t* ids;      // the same
  size_t slots;
  size_t lanes;
};

template <LogProbEncoding kEncoding>
void AddSlots(const PackedGroup& group, PackedValueWriter& codes, PackedValueWriter& ids) {
  uint32_t* next_code = codes.next();
  uint32_t* next_id = ids.next();
  size_t count = 0;
  VisitRaggedSlots(group.counts, [&](size_t lane, size_t rank) {
    const size_t slot = lane * group.slots + rank;
    next_code[count] = EncodeRoundedDown(kEncoding, group.log_probs[slot], group.multipliers[lane]);
    next_id[count++] = static_cast<uint32_t>(group.ids[slot]);
  });
  codes.Added(count);
  ids.Added(count);
}

// What the used slots of one position are read as.
template <LogProbEncoding kEncoding>
void RoundRow(const float* log_probs, size_t used, uint32_t multiplier, float* rounded) {
  for (size_t slot = 0; slot < used; ++slot) {
    const uint32_t code = EncodeRoundedDown(kEncoding, log_probs[slot], multiplier);
    rounded[slot] = DecodeLogProb(kEncoding, code, multiplier);
  }
}

// Codes, ids and multipliers. `rounded` [lanes, slots], unless it is null, gets what the used slots
// are read as.
template <LogProbEncoding kEncoding>
void EncodeGroup(PackedGroup& group, PackedValueWriter& codes, PackedValueWriter& ids,
                 float* rounded) {
  if (kEncoding == LogProbEncoding::kFixed12 && group.lanes == kGroupPositions &&
      EncodeRaggedOnVectors({group.log_probs, group.ids, group.slots, group.counts.data()},
                            {codes.next(), ids.next(), group.multipliers.data(), rounded})) {
    const size_t count = std::accumulate(group.counts.begin(), group.counts.end(), size_t{0});
    codes.Added(count);
    ids.Added(count);
    return;
  }
  for (size_t lane = 0; lane < group.lanes; ++lane) {
    const float* row = group.log_probs + lane * group.slots;
    const size_t used = group.counts[lane];
    group.multipliers[lane] =
        kEncoding == LogProbEncoding::kFixed12 && used > 0 ? Fixed12Multiplier(row[used - 1]) : 1;
    if (rounded != nullptr) {
      RoundRow<kEncoding>(row, used, group.multipliers[lane], rounded + lane * group.slots);
    }
  }
  AddSlots<kEncoding>(group, codes, ids);
}

}  // namespace

PageHeader HeaderOf(const PageHeader& header, const RecordView& records,
                    std::span<const uint16_t> ranks, std::span<uint16_t> counts) {
  PageHeader counted = header;
  counted.used_slots = 0;
  counted.outside = 0;
  if (!header.ragged()) return counted;
  const EncodedSlots encoded(header, records);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const uint16_t used = ranks[i] == kRankAbsent ? 0 : encoded[i];
    if (!counts.empty()) counts[i] = used;
    counted.used_slots += used;
    counted.outside += ranks[i] != kRankAbsent && ranks[i] >= used ? 1 : 0;
  }
  return counted;
}

void EncodeRaggedSections(const PageHeader& header, const RecordView& records,
                          std::span<const uint16_t> ranks, std::span<std::byte> page,
                          std::span<float> rounded_log_probs) {
  const PageLayout layout = LayOutPage(header);
  const size_t slots = header.slots;
  const int id_bits = IdBits(header.vocabulary_size);
  const auto writer = [&](PageSection section, int width, size_t at_once) {
    return PackedValueWriter(page.data() + section.begin, width, at_once);
  };
  // Vectors are written behind a group's slots.
  const size_t slots_at_once = kGroupPositions * (slots + 1);
  PackedValueWriter counts = writer(layout.counts, RaggedCountBits(header.slots), kGroupPositions);
  PackedValueWriter stored_ranks =
      writer(layout.ranks, RaggedRankBits(header.slots), kGroupPositions);
  PackedValueWriter multipliers = writer(layout.multipliers, kMultiplierBits, kGroupPositions);
  PackedValueWriter codes = writer(layout.log_probs, LogProbBits(header.encoding), slots_at_once);
  PackedValueWriter outside_ids = writer(layout.outside_ids, id_bits, 1);
  PackedValueWriter ids = writer(layout.ids, id_bits, slots_at_once);
  std::byte* sampled_log_probs = page.data() + layout.sampled_log_probs.begin;
  const EncodedSlots encoded(header, records);
  for (size_t first = 0; first < ranks.size(); first += kGroupPositions) {
    PackedGroup group;
    group.counts.fill(0);
    group.log_probs = records.log_probs.data() + first * slots;
    group.ids = records.ids.data() + first * slots;
    group.slots = slots;
    group.lanes = std::min<size_t>(kGroupPositions, ranks.size() - first);
    for (size_t lane = 0; lane < group.lanes; ++lane) {
      const size_t i = first + lane;
      const bool absent = ranks[i] == kRankAbsent;
      const uint16_t used = absent ? 0 : encoded[i];
      const float sampled_log_prob = absent ? 0 : records.sampled_log_probs[i];
      std::memcpy(sampled_log_probs + i * sizeof(float), &sampled_log_prob, sizeof(float));
      const bool outside = !absent && ranks[i] >= used;
      counts.next()[lane] = used;
      stored_ranks.next()[lane] = absent    ? RaggedRankAbsent(header.slots)
                                  : outside ? RaggedRankOutside(header.slots)
                                            : ranks[i];
      if (outside) outside_ids.Put(static_cast<uint32_t>(records.sampled_ids[i]));
      group.counts[lane] = used;
    }
    counts.Added(group.lanes);
    stored_ranks.Added(group.lanes);
    float* rounded = rounded_log_probs.empty() ? nullptr : rounded_log_probs.data() + first * slots;
    VisitEncoding(header.encoding, [&]<LogProbEncoding kEncoding>() {
      EncodeGroup<kEncoding>(group, codes, ids, rounded);
    });
    if (header.encoding == LogProbEncoding::kFixed12) {
      std::copy_n(group.multipliers.begin(), group.lanes, multipliers.next());
      multipliers.Added(group.lanes);
    }
    if (rounded == nullptr || !records.counts.empty()) continue;
    for (size_t lane = 0; lane < group.lanes; ++lane) {
      const size_t used = group.counts[lane];
      std::fill_n(rounded + lane * slots + used, slots - used, kMinusInfinity);
    }
  }
  for (PackedValueWriter* section :
       {&counts, &stored_ranks, &multipliers, &codes, &outside_ids, &ids}) {
    section->Finish();
  }
}

}  // namespace sis
