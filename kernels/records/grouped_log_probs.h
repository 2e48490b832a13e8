// Recorded log-probs at the slots of consecutive positions: token after token, or in groups.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/numerics/float16.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/records/encoding.h"
#include "kernels/records/fixed12.h"
#include "kernels/records/record_view.h"

namespace sis {

// Groups of kGroupPositions positions, rank by rank, as kernels/records/log_probs.h packs them:
// group g starts at g * GroupBytes(encoding, Ranks(K)); after its LeadingRows comes a row per rank,
// which holds that rank of the group's positions, one a lane. Rows of float32 and float16 are
// aligned to their elements.
struct GroupedLogProbs {
  // Whole groups; what lies in lanes of no position doesn't matter.
  std::span<const std::byte> rows = {};
  LogProbEncoding encoding = LogProbEncoding::kFloat32;
  uint8_t first_lane = 0;         // the lane of group 0 that holds the first position
  uint8_t most_ranks = kMaxTopK;  // groups have no rows for more, whose slots are unused; not 0

  bool empty() const { return rows.empty(); }
  // The rows of ranks in each group, of positions of so many slots.
  size_t Ranks(size_t slots) const { return std::min<size_t>(slots, most_ranks); }
};

// Reads single values out of either layout: one of the two holds n positions of K = slots values.
class LogProbReader {
 public:
  LogProbReader(std::span<const float> token_major, const GroupedLogProbs& grouped, size_t slots)
      : token_major_(token_major), grouped_(grouped), slots_(slots) {}

  float At(size_t position, size_t slot) const {
    if (grouped_.empty()) return token_major_[position * slots_ + slot];
    const size_t ranks = grouped_.Ranks(slots_);
    if (slot >= ranks) return kMinusInfinity;
    const LogProbEncoding encoding = grouped_.encoding;
    const size_t lane = (grouped_.first_lane + position) % kGroupPositions;
    const size_t number = (grouped_.first_lane + position) / kGroupPositions;
    const std::span<const std::byte> group =
        grouped_.rows.subspan(number * GroupBytes(encoding, ranks), GroupBytes(encoding, ranks));
    const std::byte* row = group.data() + (LeadingRows(encoding) + slot) * RowBytes(encoding);
    switch (encoding) {
      case LogProbEncoding::kFloat32:
        return Read<float>(row, lane);
      case LogProbEncoding::kFloat16:
        return DecodeFloat16(Read<uint16_t>(row, lane));
      case LogProbEncoding::kFixed12:
        return DecodeFixed12(Read12Bits(row, lane), Read12Bits(group.data(), lane));
    }
    __builtin_unreachable();
  }

 private:
  // Two values lie in three bytes, the first in the low bits.
  static uint32_t Read12Bits(const std::byte* row, size_t lane) {
    const std::byte* pair = row + lane / 2 * 3;
    const auto byte = [pair](size_t i) { return static_cast<uint32_t>(pair[i]); };
    return lane % 2 == 0 ? byte(0) | (byte(1) & 0xF) << 8 : byte(1) >> 4 | byte(2) << 4;
  }

  template <typename T>
  static T Read(const std::byte* row, size_t lane) {
    T value;
    std::memcpy(&value, row + lane * sizeof(T), sizeof(T));
    return value;
  }

  std::span<const float> token_major_;
  GroupedLogProbs grouped_;
  size_t slots_;
};

}  // namespace sis
