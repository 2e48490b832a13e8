// Reads the log-probs of one position slot by slot, in each layout that a device is given. The
// layouts are those of kernels/records/grouped_log_probs.h; rows lie on a device, aligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/evaluate/float16.h"
#include "kernels/numerics/host_device.h"
#include "kernels/records/encoding.h"
#include "kernels/records/fixed12.h"

namespace sis::cuda {

// kNone: the REDUCED form has no log-probs at slots.
enum class RowFormat : uint8_t {
  kNone,
  kTokenMajor,
  kTokenMajorFloat16,
  kFloat32,
  kFloat16,
  kFixed12
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
  SIS_HOST_DEVICE float At(int slot) const { return Float16Value(row_[slot]); }

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
  SIS_HOST_DEVICE float At(int slot) const { return Float16Value(column_[slot * kGroupPositions]); }

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

}  // namespace sis::cuda
