// Sums over many draws, in float64, because they outgrow the fixed point of one draw's sums.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace sis {

// The total of structures that have only int64_t fields, as AddEach adds them.
template <typename Sums>
class Total {
 public:
  Total& operator+=(const Sums& sums) {
    const auto addends = std::bit_cast<std::array<int64_t, kFields>>(sums);
    for (size_t i = 0; i < kFields; ++i) totals_[i] += static_cast<double>(addends[i]);
    return *this;
  }

  // Returns the total of a field in units of 2^-bits: kFixedBits, kCountedWeightBits, or 0 for
  // counts.
  double Of(int64_t Sums::*field, int bits = 0) const {
    const Sums sums;
    const size_t index = &(sums.*field) - reinterpret_cast<const int64_t*>(&sums);
    return std::ldexp(totals_[index], -bits);
  }

 private:
  static constexpr size_t kFields = sizeof(Sums) / sizeof(int64_t);

  std::array<double, kFields> totals_ = {};
};

}  // namespace sis
