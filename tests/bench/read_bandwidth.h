// How fast one core reads memory: the yardstick that kernels are measured against, in turn in the
// same run; and how what was measured is summed up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sis {

// Reads all bytes once, with the widest vectors of this machine; returns something that depends on
// all of them. The size must be a multiple of 1024.
uint64_t ReadAll(std::span<const std::byte> bytes);

// Returns this thread's processor time. Other processes affect it less than they affect the clock.
double ThreadSeconds();

struct Spread {
  double median, least, most;
};
Spread SpreadOf(std::vector<double> values);

}  // namespace sis
