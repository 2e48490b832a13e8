// Writes packed values (packed_values.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

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
      : to_(to), width_(width), rows_(1 + GroupCount(at_once)) {}

  // Where the next values go, as many as may come at once; Added then says how many those were.
  uint32_t* next() { return rows_.front().data() + waiting_; }
  void Added(size_t count) {
    waiting_ += count;
    const size_t whole = waiting_ / kGroupPositions;
    if (whole == 0) return;
    for (size_t row = 0; row < whole; ++row) {
      PackRow(rows_[row], width_, {to_, PackedRowBytes(width_)});
      to_ += PackedRowBytes(width_);
    }
    waiting_ %= kGroupPositions;
    std::copy_n(rows_[whole].begin(), waiting_, rows_.front().begin());
  }
  void Put(uint32_t value) {
    *next() = value;
    Added(1);
  }
  // After the last value.
  void Finish() {
    std::fill(rows_.front().begin() + waiting_, rows_.front().end(), 0);
    std::array<std::byte, PackedRowBytes(32)> last;
    PackRow(rows_.front(), width_, last);
    std::memcpy(to_, last.data(), PackedValueBytes(waiting_, width_));
  }

 private:
  static constexpr size_t kFewRows = 24;  // more are kept on the heap

  std::byte* to_;
  const int width_;
  size_t waiting_ = 0;  // less than a row, at the beginning of rows_
  absl::FixedArray<RowValues, kFewRows> rows_;
};

}  // namespace sis
