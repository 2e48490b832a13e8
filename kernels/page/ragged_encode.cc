#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/numerics/log_prob.h"
#include "kernels/page/encoded_page.h"
#include "kernels/page/page_layout.h"
#include "kernels/page/ragged_page.h"
#include "kernels/records/log_prob_code.h"
#include "kernels/records/log_probs.h"
#include "kernels/records/packed_values.h"

namespace sis {
namespace {

struct PackedGroup {
  GroupCounts counts{};
  std::array<uint32_t, kGroupPositions> multipliers;
  std::array<const float*, kGroupPositions> log_probs;
  std::array<const int32_t*, kGroupPositions> ids;
};

template <LogProbEncoding kEncoding>
void PutSlots(const PackedGroup& group, PackedValueWriter& codes, PackedValueWriter& ids) {
  VisitRaggedSlots(group.counts, [&](size_t lane, size_t rank) {
    codes.Put(EncodeRoundedDown(kEncoding, group.log_probs[lane][rank], group.multipliers[lane]));
    ids.Put(static_cast<uint32_t>(group.ids[lane][rank]));
  });
}

// What the slots of one position are read as.
void RoundRow(LogProbEncoding encoding, std::span<const float> log_probs, size_t used,
              uint32_t multiplier, std::span<float> rounded) {
  VisitEncoding(encoding, [&]<LogProbEncoding kEncoding>() {
    for (size_t slot = 0; slot < used; ++slot) {
      const uint32_t code = EncodeRoundedDown(kEncoding, log_probs[slot], multiplier);
      rounded[slot] = DecodeLogProb(kEncoding, code, multiplier);
    }
  });
  std::ranges::fill(rounded.subspan(used), kMinusInfinity);
}

}  // namespace

PageHeader HeaderOf(const PageHeader& header, const RecordView& records,
                    std::span<const uint16_t> ranks) {
  PageHeader counted = header;
  counted.used_slots = 0;
  counted.outside = 0;
  if (!header.ragged()) return counted;
  const size_t slots = header.slots;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == kRankAbsent) continue;
    const uint16_t used = FitRow(header.encoding, records.log_probs.subspan(i * slots, slots)).used;
    counted.used_slots += used;
    counted.outside += ranks[i] < used ? 0 : 1;
  }
  return counted;
}

void EncodeRaggedSections(const PageHeader& header, const RecordView& records,
                          std::span<const uint16_t> ranks, std::span<std::byte> page,
                          std::span<float> rounded_log_probs) {
  const PageLayout layout = LayOutPage(header);
  const auto writer = [&](PageSection section, int width) {
    return PackedValueWriter(page.data() + section.begin, width);
  };
  const LogProbEncoding encoding = header.encoding;
  const size_t slots = header.slots;
  const int id_bits = IdBits(header.vocabulary_size);
  PackedValueWriter counts = writer(layout.counts, RaggedCountBits(header.slots));
  PackedValueWriter stored_ranks = writer(layout.ranks, RaggedRankBits(header.slots));
  PackedValueWriter multipliers = writer(layout.multipliers, kMultiplierBits);
  PackedValueWriter codes = writer(layout.log_probs, LogProbBits(encoding));
  PackedValueWriter outside_ids = writer(layout.outside_ids, id_bits);
  PackedValueWriter ids = writer(layout.ids, id_bits);
  std::byte* sampled_log_probs = page.data() + layout.sampled_log_probs.begin;
  for (size_t first = 0; first < ranks.size(); first += kGroupPositions) {
    const size_t lanes = std::min<size_t>(kGroupPositions, ranks.size() - first);
    PackedGroup group;
    for (size_t lane = 0; lane < lanes; ++lane) {
      const size_t i = first + lane;
      const bool absent = ranks[i] == kRankAbsent;
      const auto row = records.log_probs.subspan(i * slots, slots);
      const auto [used, multiplier] = absent ? RowFit{0, 1} : FitRow(encoding, row);
      const float sampled_log_prob = absent ? 0 : records.sampled_log_probs[i];
      std::memcpy(sampled_log_probs + i * sizeof(float), &sampled_log_prob, sizeof(float));
      counts.Put(used);
      const bool outside = !absent && ranks[i] >= used;
      stored_ranks.Put(absent    ? RaggedRankAbsent(header.slots)
                       : outside ? RaggedRankOutside(header.slots)
                                 : ranks[i]);
      if (outside) outside_ids.Put(static_cast<uint32_t>(records.sampled_ids[i]));
      if (encoding == LogProbEncoding::kFixed12) multipliers.Put(multiplier);
      group.counts[lane] = used;
      group.multipliers[lane] = multiplier;
      group.log_probs[lane] = row.data();
      group.ids[lane] = records.ids.data() + i * slots;
      if (!rounded_log_probs.empty()) {
        RoundRow(encoding, row, used, multiplier, rounded_log_probs.subspan(i * slots, slots));
      }
    }
    VisitEncoding(encoding,
                  [&]<LogProbEncoding kEncoding>() { PutSlots<kEncoding>(group, codes, ids); });
  }
  for (const PackedValueWriter* section :
       {&counts, &stored_ranks, &multipliers, &codes, &outside_ids, &ids}) {
    section->Finish();
  }
}

}  // namespace sis
