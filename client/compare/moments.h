// Mean and standard error of what is measured one by one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace sis {

struct Moments {
  size_t count = 0;
  double sum = 0, squares = 0;

  void Add(double value) {
    ++count;
    sum += value;
    squares += value * value;
  }
  Moments& operator+=(const Moments& other) {
    count += other.count;
    sum += other.sum;
    squares += other.squares;
    return *this;
  }
  // Of the values, and of their mean; NaN without a value.
  double mean() const { return sum / static_cast<double>(count); }
  double standard_error() const {
    const auto n = static_cast<double>(count);
    return std::sqrt(std::max(0.0, squares / n - mean() * mean()) / n);
  }
};

}  // namespace sis
