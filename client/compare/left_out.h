// Positions of two recordings that no ratio comes of.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/compare/decisions.h"
#include "client/recorded/recorded_sets.h"

namespace sis {

struct LeftOut {
  std::string name;  // for programs; does not change
  size_t positions = 0;
  std::string reason;  // of "240 of 960 positions ..."
};

// Of the positions that either file has, all that have no ratio in `decisions`, which are those of
// A as the behaviour policy.
std::vector<LeftOut> CountLeftOut(const RecordedPair& pair, const Decisions& decisions);

// A sentence about them. `scored` positions have a ratio.
std::string DescribeLeftOut(const std::vector<LeftOut>& left_out, size_t scored);

}  // namespace sis
