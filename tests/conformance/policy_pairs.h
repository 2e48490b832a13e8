// Random pairs of policies at one position, and random positions made from them: what a record can
// hold, edge cases included, always valid (docs/numerics.md, section 2).
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "tests/conformance/positions.h"

namespace sis {

// Both policies' log-probs of one position's tokens, in the order of the record: the most probable
// under the behaviour policy first, ties by id.
struct PolicyPair {
  std::vector<int32_t> ids;
  std::vector<float> behavior;  // finite
  std::vector<float> current;   // may be -inf

  size_t size() const { return ids.size(); }
};

inline constexpr int kMaxPairTokens = 64;

// Pairs of policies with temperatures from nearly greedy to nearly uniform; equal, close, far apart
// or with disjoint support; now and then with tied behaviour log-probs. `tokens` is the size of
// both policies' whole support, at most kMaxPairTokens.
PolicyPair RandomPolicyPair(std::mt19937_64& random, int tokens);

// Appends a position where `pair` is recorded with positions.slots slots (the first of the pair's
// tokens, the rest unused) and its token `sampled` was drawn.
void AppendPosition(const PolicyPair& pair, size_t sampled, Positions& positions);

// n positions of random pairs, some with fewer tokens than slots or no slot used, the sampled token
// drawn from the behaviour policy.
Positions RandomPositions(std::mt19937_64& random, int slots, size_t n);

// The same positions in the REDUCED form, for the first top_k slots that are left of them once they
// are packed.
Positions Reduce(const Positions& gathered, int top_k, Packing packing = {});

}  // namespace sis
