// How fast one core reads memory: the yardstick that kernels are measured against, in the same run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sis {

// Reads all bytes once, with the widest vectors of this machine; returns something that depends on
// all of them. The size must be a multiple of 1024.
uint64_t ReadAll(std::span<const std::byte> bytes);

}  // namespace sis
