// How log-probs of single tokens differ, beyond what normalisers, temperature and noise explain.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/compare/compared_positions.h"

namespace sis {

struct TokenDifference {
  int32_t id;
  bool seen;          // whether the text has the token already
  double difference;  // of B's log-prob to A's, nats, less the median of the position's tokens
};

// Of the listed tokens of all positions with at least three in common. `slope` is that of
// FitTemperature. A token that only one file lists counts, if it would have had to be in the other
// list by 0.3 nats, with the least difference that it must have.
std::vector<TokenDifference> TokenDifferences(std::span<const ComparedPosition> positions,
                                              double slope);

}  // namespace sis
