// Arrays of float16, decoded on vectors: the same bits as float16.h gives one by one.
#pragma once

#include <cstdint>
#include <span>

namespace sis {

// [n] to [n].
void DecodeFloat16s(std::span<const uint16_t> halves, std::span<float> values);

}  // namespace sis
