// Packs decisions into the accept bits of an EvaluateResponse.
#pragma once

#include <span>
#include <string>

#include "kernels/decide/decide.h"

namespace sis {

// Returns ceil(N / 8) bytes; bit i % 8 of byte i / 8 is set if position i is accepted.
std::string PackAcceptBits(std::span<const Decision> decisions);

}  // namespace sis
