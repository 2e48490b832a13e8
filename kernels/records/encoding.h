// How log-probs lie in pages and packed arrays: groups of 16 positions, rank by rank, in one of a
// few encodings.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/numerics/host_device.h"

namespace sis {

// The numbers are those of the page format (docs/page_format.md).
enum class LogProbEncoding : uint8_t { kFloat32 = 0, kFloat16 = 1, kFixed12 = 2 };

// Positions side by side: one row holds one rank of 16 consecutive positions.
inline constexpr int kGroupPositions = 16;

constexpr size_t RowBytes(LogProbEncoding encoding) {
  switch (encoding) {
    case LogProbEncoding::kFloat32:
      return size_t{kGroupPositions} * 4;
    case LogProbEncoding::kFloat16:
      return size_t{kGroupPositions} * 2;
    case LogProbEncoding::kFixed12:
      return size_t{kGroupPositions} * 12 / 8;
  }
  return 0;
}

constexpr int LogProbBits(LogProbEncoding encoding) {
  return static_cast<int>(RowBytes(encoding) * 8 / kGroupPositions);
}
// Of a position's step in kFixed12.
inline constexpr int kMultiplierBits = 12;

// Rows before that of rank 0 in each group: the steps of kFixed12 (fixed12.h), one per
// position.
constexpr size_t LeadingRows(LogProbEncoding encoding) {
  return encoding == LogProbEncoding::kFixed12 ? 1 : 0;
}

// Calls visit.operator()<kEncoding>(), so that what is compiled for one encoding is chosen once.
template <class Visitor>
SIS_HOST_DEVICE decltype(auto) VisitEncoding(LogProbEncoding encoding, const Visitor& visit) {
  switch (encoding) {
    case LogProbEncoding::kFloat32:
      return visit.template operator()<LogProbEncoding::kFloat32>();
    case LogProbEncoding::kFloat16:
      return visit.template operator()<LogProbEncoding::kFloat16>();
    case LogProbEncoding::kFixed12:
      return visit.template operator()<LogProbEncoding::kFixed12>();
  }
  __builtin_unreachable();
}

constexpr size_t GroupBytes(LogProbEncoding encoding, size_t slots) {
  return (LeadingRows(encoding) + slots) * RowBytes(encoding);
}

constexpr size_t GroupCount(size_t positions) {
  return (positions + kGroupPositions - 1) / kGroupPositions;
}

}  // namespace sis
