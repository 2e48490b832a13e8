// Reads the log-probs of one position slot by slot, in each layout of
// kernels/records/grouped_log_probs.h and ragged_log_probs.h. Rows lie on a device, aligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/numerics/host_device.h"
#include "kernels/records/encoding.h"
#include "kernels/records/log_prob_code.h"
#include "kernels/records/ragged_log_probs.h"

namespace sis::cuda {

// How log-probs lie; the encoding stands beside. kNone: the REDUCED form has none at slots. Current
// values are token-major, in float32 or float16; recorded ones in any layout, if token-major in
// float32.
enum class RowLayout : uint8_t { kNone, kTokenMajor, kGrouped, kRagged };

// `lane` counts the positions from lane 0 of the first group on; token-major rows have no lanes,
// and it counts rows.

template <LogProbEncoding kEncoding>
class TokenMajorReader {
 public:
  SIS_HOST_DEVICE TokenMajorReader(const std::byte* rows, size_t lane, int slots)
      : row_(rows + lane * static_cast<size_t>(slots) * LogProbBits(kEncoding) / 8) {}
  SIS_HOST_DEVICE float At(int slot) const {
    return DecodeLogProb(kEncoding, CodeAt<kEncoding>(row_, static_cast<size_t>(slot)), 1);
  }

 private:
  const std::byte* row_;
};

template <LogProbEncoding kEncoding>
class GroupedReader {
 public:
  SIS_HOST_DEVICE GroupedReader(const std::byte* rows, size_t lane, int slots)
      : pair_(rows + lane / kGroupPositions * GroupBytes(kEncoding, static_cast<size_t>(slots)) +
              lane % kGroupPositions / 2 * 2 * LogProbBits(kEncoding) / 8),
        odd_(lane % 2),
        multiplier_(LeadingRows(kEncoding) > 0 ? Code(0) : 1) {}
  SIS_HOST_DEVICE float At(int slot) const {
    return DecodeLogProb(kEncoding, Code(static_cast<size_t>(slot) + LeadingRows(kEncoding)),
                         multiplier_);
  }

 private:
  SIS_HOST_DEVICE uint32_t Code(size_t row) const {
    return CodeAt<kEncoding>(pair_ + row * RowBytes(kEncoding), odd_);
  }

  const std::byte* pair_;  // of lanes, in the first row
  size_t odd_;
  uint32_t multiplier_;
};

// Where ragged log-probs lie; the codes from slot begins[0] on, or that before it if it is odd.
struct RaggedSections {
  const uint16_t* counts;
  const uint32_t* begins;
  const std::byte* multipliers;
  const std::byte* codes;
};

template <LogProbEncoding kEncoding>
class RaggedReader {
 public:
  SIS_HOST_DEVICE RaggedReader(const RaggedSections& sections, size_t lane)
      : counts_(sections.counts + lane / kGroupPositions * kGroupPositions),
        lane_(lane % kGroupPositions),
        codes_(sections.codes),
        begin_(sections.begins[lane / kGroupPositions] - sections.begins[0] +
               sections.begins[0] % 2),
        multiplier_(kEncoding == LogProbEncoding::kFixed12
                        ? CodeAt<LogProbEncoding::kFixed12>(sections.multipliers, lane)
                        : 1) {}

  SIS_HOST_DEVICE int count() const { return counts_[lane_]; }
  // Of a slot below count().
  SIS_HOST_DEVICE float At(int slot) const {
    const size_t index = begin_ + RaggedSlot(counts_, lane_, static_cast<uint32_t>(slot));
    return DecodeLogProb(kEncoding, CodeAt<kEncoding>(codes_, index), multiplier_);
  }

 private:
  const uint16_t* counts_;
  size_t lane_;
  const std::byte* codes_;
  size_t begin_;
  uint32_t multiplier_;
};

}  // namespace sis::cuda
