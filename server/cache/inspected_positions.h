// Evaluated and recorded values at consecutive positions of one sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/decide/decide.h"
#include "kernels/numerics/sums.h"

namespace sis {

// Decision of a position that has not been evaluated. Its other values are undefined.
inline constexpr Decision kNotEvaluated{0};

// T positions; all arrays are row-major.
struct InspectedPositions {
  explicit InspectedPositions(size_t slots) : slots(slots) {}

  size_t slots;                                 // K
  std::vector<Decision> decisions;              // [T]
  std::vector<uint8_t> missing_reasons;         // [T], a MissingReason if missing, otherwise 0
  std::vector<int32_t> sampled_ids;             // [T], -1 without a record
  std::vector<float> sampled_log_probs;         // [T], log q
  std::vector<float> log_ratios;                // [T], log w, unmodified
  std::vector<float> acceptance_probabilities;  // [T], a
  std::vector<float> log_envelopes;             // [T], log M
  std::vector<float> covered_masses;            // [T], 1 - xi
  std::vector<int64_t> staleness;               // [T], policy versions behind; negative: ahead
  std::vector<int32_t> top_k_ids;               // [T, K], -1 in unused slots
  std::vector<float> top_k_log_probs;           // [T, K], -inf in unused slots
  // [T, K], NaN in unused slots and without values in the request.
  std::vector<float> current_log_probs;

  size_t size() const { return decisions.size(); }
  // Resizes all arrays to `count` positions without values.
  void Resize(size_t count);
  // Copies positions [from, from + count) of `other`, which has the same K, to positions from `to`
  // on.
  void Copy(size_t to, const InspectedPositions& other, size_t from, size_t count);
  // Returns the sums of the positions that were scored, missing or masked, as for SAMPLED weights.
  Sums Total() const;

  static constexpr int64_t BytesPerPosition(size_t slots) {
    return 34 + 12 * static_cast<int64_t>(slots);
  }
};

inline bool IsScored(Decision decision) {
  return decision == Decision::kAccepted || decision == Decision::kRejected ||
         decision == Decision::kOutsideTopK;
}

}  // namespace sis
