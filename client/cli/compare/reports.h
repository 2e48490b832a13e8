// The comparison as a person reads it in a terminal, for programs, and for a browser.
#pragma once

#include <cstdint>
#include <string>

#include "client/compare/comparison.h"

namespace sis {

// The table has the `positions` positions with the largest |log w|, in their order.
std::string TextReport(const Comparison& comparison, uint32_t positions);

// One object, in one line: a, b, fault, undecided, verdict, checks, left_out, d, profile, a_to_b,
// b_to_a, notes, positions. Numbers that are not there are null.
std::string JsonReport(const Comparison& comparison);

// Verdict, checks and profile of a diagnosis alone.
std::string DiagnosisText(const Diagnosis& diagnosis);

// One file that needs no other and no network: the same as tables and charts, and each sequence
// under the microscope in both directions.
std::string HtmlReport(const Comparison& comparison);

}  // namespace sis
