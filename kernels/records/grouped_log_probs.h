// Recorded log-probs at the slots of consecutive positions: token after token, in groups, or
// ragged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/numerics/log_prob.h"
#include "kernels/records/encoding.h"
#include "kernels/records/log_prob_code.h"
#include "kernels/records/packed_values.h"
#include "kernels/records/ragged_log_probs.h"

namespace sis {

// Groups of kGroupPositions positions, rank by rank, as kernels/records/log_probs.h packs them:
// group g starts at g * GroupBytes(encoding, K); after its LeadingRows comes a row per rank,
// which holds that rank of the group's positions, one a lane. Rows of float32 and float16 are
// aligned to their elements.
struct GroupedLogProbs {
  // Whole groups; what lies in lanes of no position doesn't matter.
  std::span<const std::byte> rows = {};
  LogProbEncoding encoding = LogProbEncoding::kFloat32;
  uint8_t first_lane = 0;  // the lane of group 0 that holds the first position

  bool empty() const { return rows.empty(); }
};

// Reads single values out of any layout: one of them holds n positions of K = slots values.
class LogProbReader {
 public:
  LogProbReader(std::span<const float> token_major, const GroupedLogProbs& grouped, size_t slots,
                const RaggedLogProbs& ragged = {})
      : token_major_(token_major), grouped_(grouped), ragged_(ragged), slots_(slots) {}

  float At(size_t position, size_t slot) const {
    if (!token_major_.empty()) return token_major_[position * slots_ + slot];
    if (!ragged_.empty()) return AtRagged(ragged_.first_lane + position, slot);
    const size_t place = grouped_.first_lane + position;
    const size_t lane = place % kGroupPositions;
    const LogProbEncoding encoding = grouped_.encoding;
    const std::byte* group =
        grouped_.rows.data() + place / kGroupPositions * GroupBytes(encoding, slots_);
    const std::byte* row = group + (LeadingRows(encoding) + slot) * RowBytes(encoding);
    switch (encoding) {
      case LogProbEncoding::kFloat32:
        return reinterpret_cast<const float*>(row)[lane];
      case LogProbEncoding::kFloat16:
        return DecodeFloat16(reinterpret_cast<const uint16_t*>(row)[lane]);
      case LogProbEncoding::kFixed12:
        return DecodeFixed12(CodeAt<LogProbEncoding::kFixed12>(row, lane),
                             CodeAt<LogProbEncoding::kFixed12>(group, lane));
    }
    __builtin_unreachable();
  }

 private:
  // `position` counts from lane 0 of the first group on.
  [[gnu::noinline]] float AtRagged(size_t position, size_t slot) const {
    const size_t group = position / kGroupPositions;
    const uint16_t* counts = ragged_.counts.data() + group * kGroupPositions;
    const size_t lane = position % kGroupPositions;
    if (slot >= counts[lane]) return kMinusInfinity;
    const LogProbEncoding encoding = ragged_.encoding;
    const PackedValues codes(ragged_.codes, LogProbBits(encoding));
    const PackedValues multipliers(ragged_.multipliers, kMultiplierBits);
    const uint32_t index = RaggedSlot(counts, lane, static_cast<uint32_t>(slot));
    return DecodeLogProb(encoding, codes.At(ragged_.begins[group] + index),
                         multipliers.At(position));
  }
  std::span<const float> token_major_;
  GroupedLogProbs grouped_;
  RaggedLogProbs ragged_;
  size_t slots_;
};

}  // namespace sis
