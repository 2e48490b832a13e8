// Reads the log-probs of one position slot by slot, in each layout of
// kernels/records/grouped_log_probs.h and ragged_log_probs.h. Rows lie on a device, aligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/numerics/float16.h"
#include "kernels/numerics/host_device.h"
#include "kernels/records/encoding.h"
#include "kernels/records/fixed12.h"
#include "kernels/records/ragged_log_probs.h"

namespace sis::cuda {

// kNone: the REDUCED form has no log-probs at slots. Current values are token-major, in float32 or
// float16; recorded ones in anything but kTokenMajorFloat16. Who reads kRagged has the encoding
// besides.
enum class RowFormat : uint8_t {
  kNone,
  kTokenMajor,
  kTokenMajorFloat16,
  kFloat32,
  kFloat16,
  kFixed12,
  kRagged
};

// `lane` counts the positions from lane 0 of the first group on; token-major rows have no lanes,
// and it counts rows.

class TokenMajorReader {
 public:
  SIS_HOST_DEVICE TokenMajorReader(const std::byte* rows, size_t lane, int slots)
      : row_(reinterpret_cast<const float*>(rows) + lane * static_cast<size_t>(slots)) {}
  SIS_HOST_DEVICE float At(int slot) const { return row_[slot]; }

 private:
  const float* row_;
};

class TokenMajorFloat16Reader {
 public:
  SIS_HOST_DEVICE TokenMajorFloat16Reader(const std::byte* rows, size_t lane, int slots)
      : row_(reinterpret_cast<const uint16_t*>(rows) + lane * static_cast<size_t>(slots)) {}
  SIS_HOST_DEVICE float At(int slot) const { return DecodeFloat16(row_[slot]); }

 private:
  const uint16_t* row_;
};

// Where a lane's group begins.
SIS_HOST_DEVICE inline const std::byte* GroupOf(const std::byte* rows, LogProbEncoding encoding,
                                                size_t lane, int slots) {
  return rows + lane / kGroupPositions * GroupBytes(encoding, static_cast<size_t>(slots));
}

class Float32Reader {
 public:
  SIS_HOST_DEVICE Float32Reader(const std::byte* rows, size_t lane, int slots)
      : column_(
            reinterpret_cast<const float*>(GroupOf(rows, LogProbEncoding::kFloat32, lane, slots)) +
            lane % kGroupPositions) {}
  SIS_HOST_DEVICE float At(int slot) const { return column_[slot * kGroupPositions]; }

 private:
  const float* column_;
};

class Float16Reader {
 public:
  SIS_HOST_DEVICE Float16Reader(const std::byte* rows, size_t lane, int slots)
      : column_(reinterpret_cast<const uint16_t*>(
                    GroupOf(rows, LogProbEncoding::kFloat16, lane, slots)) +
                lane % kGroupPositions) {}
  SIS_HOST_DEVICE float At(int slot) const {
    return DecodeFloat16(column_[slot * kGroupPositions]);
  }

 private:
  const uint16_t* column_;
};

class Fixed12Reader {
 public:
  SIS_HOST_DEVICE Fixed12Reader(const std::byte* rows, size_t lane, int slots)
      // Two codes lie in three bytes; an odd lane's begins in the middle of one.
      : column_(reinterpret_cast<const uint8_t*>(
                    GroupOf(rows, LogProbEncoding::kFixed12, lane, slots)) +
                lane % kGroupPositions * 3 / 2),
        shift_(lane % 2 * 4),
        multiplier_(Code(0)) {}
  SIS_HOST_DEVICE float At(int slot) const { return DecodeFixed12(Code(slot + 1), multiplier_); }

 private:
  SIS_HOST_DEVICE uint32_t Code(int row) const {
    const uint8_t* bytes = column_ + row * static_cast<int>(RowBytes(LogProbEncoding::kFixed12));
    return (bytes[0] | static_cast<uint32_t>(bytes[1]) << 8) >> shift_ & 0xFFF;
  }

  const uint8_t* column_;
  uint32_t shift_;
  uint32_t multiplier_;
};

// Two of twelve bits lie in three bytes, one after the other without end.
SIS_HOST_DEVICE inline uint32_t TwelveBitsAt(const std::byte* values, size_t index) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(values) + index * 3 / 2;
  return (bytes[0] | static_cast<uint32_t>(bytes[1]) << 8) >> index % 2 * 4 & 0xFFF;
}

// Where ragged log-probs lie; the codes from slot begins[0] on, or that before it if it is odd.
struct RaggedSections {
  const uint8_t* counts;
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
        multiplier_(
            kEncoding == LogProbEncoding::kFixed12 ? TwelveBitsAt(sections.multipliers, lane) : 1) {
  }

  SIS_HOST_DEVICE int count() const { return counts_[lane_]; }
  // Of a slot below count().
  SIS_HOST_DEVICE float At(int slot) const {
    const size_t index = begin_ + RaggedSlot(counts_, lane_, static_cast<uint32_t>(slot));
    if constexpr (kEncoding == LogProbEncoding::kFixed12) {
      return DecodeFixed12(TwelveBitsAt(codes_, index), multiplier_);
    } else if constexpr (kEncoding == LogProbEncoding::kFloat16) {
      return DecodeFloat16(reinterpret_cast<const uint16_t*>(codes_)[index]);
    } else {
      return reinterpret_cast<const float*>(codes_)[index];
    }
  }

 private:
  const uint8_t* counts_;
  size_t lane_;
  const std::byte* codes_;
  size_t begin_;
  uint32_t multiplier_;
};

}  // namespace sis::cuda
