// The comparison for programs.
#pragma once

#include <string>

#include "client/cli/compare/comparison.h"

namespace sis {

// One object, in one line: a, b, fault, undecided, verdict, checks, left_out, d, a_to_b, b_to_a,
// notes, positions. Numbers that are not there are null.
std::string JsonReport(const Comparison& comparison);

}  // namespace sis
