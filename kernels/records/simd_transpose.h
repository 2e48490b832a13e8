// A group's rows, made into positions on vectors.
#pragma once

#include <cstddef>
#include <span>

namespace sis {

// Elements of 32 bits, of any type: from [K, 16], rank by rank, to [16, K]. False, with nothing
// done, where K < 4 and on machines without vectors.
bool TransposeOnVectors(std::span<const std::byte> ranks, std::span<std::byte> positions);

}  // namespace sis
