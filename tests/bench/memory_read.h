// What one core can read: the yardstick of kernels that do nothing but read.
#pragma once

#include <cstdint>
#include <span>

namespace sis {

// The sum of all values, with the widest vectors of the machine and nothing else in the loop.
uint64_t SumOfAll(std::span<const uint64_t> values);

}  // namespace sis
