// Writes packed values (packed_values.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "absl/container/fixed_array.h"
#include "kernels/records/encoding.h"
#include "kernels/records/packed_row.h"
#include "kernels/records/packed_values.h"

namespace sis {

// Writes values of one width, in [1, 32], below 2^width: a row of 16 at once.
class PackedValueWriter {
 public:
  // `to` has room for PackedValueBytes of all that will be put, at most so many at once.
  PackedValueWriter(std::byte* to, int width, size_t at_once = 1)
      : to_(to), width_(width), values_(kGroupPositions * (1 + GroupCount(at_once))) {}

  // Where the next values go, as many as may come at once; Added then says how many those were.
  uint32_t* next() { return values_.data() + waiting_; }
  void Added(size_t count) {
    waiting_ += count;
    const size_t whole = waiting_ / kGroupPositions;
    if (whole == 0) return;
    const uint32_t* row = values_.data();
    for (size_t i = 0; i < whole; ++i) {
      PackRow(RowValuesView(row, kGroupPositions), width_, {to_, PackedRowBytes(width_)});
      row += kGroupPositions;
      to_ += PackedRowBytes(width_);
    }
    waiting_ %= kGroupPositions;
    std::copy_n(row, waiting_, values_.begin());
  }
  void Put(uint32_t value) {
    *next() = value;
    Added(1);
  }
  // After the last value.
  void Finish() {
    const std::span row = std::span(values_).first<kGroupPositions>();
    std::ranges::fill(row.subspan(waiting_), 0);
    std::array<std::byte, PackedRowBytes(32)> last;
    PackRow(row, width_, last);
    std::memcpy(to_, last.data(), PackedValueBytes(waiting_, width_));
  }

 private:
  static constexpr size_t kFew = 24 * kGroupPositions;  // more are kept on the heap

  std::byte* to_;
  const int width_;
  size_t waiting_ = 0;  // less than a row, at the beginning of values_
  absl::FixedArray<uint32_t, kFew> values_;
};

}  // namespace sis
