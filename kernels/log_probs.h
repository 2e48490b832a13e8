// Log-probs at the slots of a run of positions, as they lie in memory: token after token, or in
// groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/codec/float16.h"
#include "kernels/encoding.h"

namespace sis {

// Groups of kGroupPositions positions in float32 or float16, rank by rank: the row of group g and
// rank r is at (g * K + r) * RowBytes(encoding), and holds that rank of the group's positions, one
// a lane. Rows are aligned to their elements.
struct GroupedLogProbs {
  // Whole groups; what lies in lanes of no position doesn't matter.
  std::span<const std::byte> rows = {};
  LogProbEncoding encoding = LogProbEncoding::kFloat32;
  uint8_t first_lane = 0;  // the lane of group 0 that holds the first position

  bool empty() const { return rows.empty(); }
};

// Reads single values out of either layout. Exactly one of the two must hold n positions of K =
// slots values.
class LogProbReader {
 public:
  LogProbReader(std::span<const float> token_major, const GroupedLogProbs& grouped, size_t slots)
      : token_major_(token_major), grouped_(grouped), slots_(slots) {}

  float At(size_t position, size_t slot) const {
    if (grouped_.empty()) return token_major_[position * slots_ + slot];
    const size_t lane = grouped_.first_lane + position;
    const size_t row = lane / kGroupPositions * slots_ + slot;
    const std::span<const std::byte> bytes =
        grouped_.rows.subspan(row * RowBytes(grouped_.encoding), RowBytes(grouped_.encoding));
    return InRow(bytes.data(), grouped_.encoding, lane % kGroupPositions);
  }

 private:
  static float InRow(const std::byte* row, LogProbEncoding encoding, size_t lane) {
    switch (encoding) {
      case LogProbEncoding::kFloat32:
        return Read<float>(row, lane);
      case LogProbEncoding::kFloat16:
        return DecodeFloat16(Read<uint16_t>(row, lane));
      case LogProbEncoding::kFixed12:
        break;
    }
    __builtin_unreachable();
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
