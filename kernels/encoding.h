// How log-probs lie in pages and packed arrays: groups of 16 positions, rank by rank, in one of a
// few encodings.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sis {

// The numbers are those of the page format (docs/page_format.md).
enum class LogProbEncoding : uint8_t { kFloat32 = 0, kFloat16 = 1, kFixed12 = 2 };

// Positions side by side: one row holds one rank of 16 consecutive positions.
inline constexpr int kGroupPositions = 16;

constexpr size_t RowBytes(LogProbEncoding encoding) {
  switch (encoding) {
    case LogProbEncoding::kFloat32:
      return kGroupPositions * 4;
    case LogProbEncoding::kFloat16:
      return kGroupPositions * 2;
    case LogProbEncoding::kFixed12:
      return kGroupPositions * 12 / 8;
  }
  return 0;
}

}  // namespace sis
