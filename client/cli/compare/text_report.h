// The comparison as a person reads it in a terminal.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/compare/comparison.h"

namespace sis {

// The table has the `positions` positions with the largest |log w|, in their order.
std::string TextReport(const Comparison& comparison, uint32_t positions);

}  // namespace sis
