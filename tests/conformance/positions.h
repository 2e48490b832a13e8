// Positions with everything that evaluating them takes, owned; and evaluating them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decide/backend.h"
#include "kernels/records/record_view.h"

namespace sis {

// n consecutive positions of one sequence, K slots each, row-major.
struct Positions {
  int slots = 0;
  std::vector<int32_t> sampled_ids;               // [n]
  std::vector<float> behavior_sampled_log_probs;  // [n]
  std::vector<uint16_t> sampled_ranks;            // [n]
  std::vector<int32_t> ids;                       // [n, K]
  std::vector<float> behavior_log_probs;          // [n, K]
  std::vector<float> current_sampled_log_probs;   // [n]
  std::vector<float> current_log_probs;           // [n, K], empty in the REDUCED form
  std::vector<float> log_envelopes;               // [n], REDUCED
  std::vector<float> covered_masses;              // [n], REDUCED

  size_t size() const { return sampled_ids.size(); }
  RecordView records() const;
  BehaviorView behavior() const;
  CurrentView current() const;

  // The positions [first, first + count).
  Positions Slice(size_t first, size_t count) const;
};

// What a backend gave for n positions.
struct Results {
  explicit Results(size_t n, size_t prefix_points = 0)
      : decisions(n),
        acceptance_probabilities(n),
        log_modified_ratios(n),
        modified_ratios(n),
        log_ratios(n),
        log_envelopes(n),
        covered_masses(n),
        prefix_sums(prefix_points) {}

  std::vector<Decision> decisions;
  std::vector<float> acceptance_probabilities;
  std::vector<float> log_modified_ratios;
  std::vector<float> modified_ratios;
  std::vector<float> log_ratios;
  std::vector<float> log_envelopes;
  std::vector<float> covered_masses;
  Sums sums;
  std::vector<PrefixSums> prefix_sums;  // one per point of the curve
};

// The positions [first, first + count) as a stretch that writes to the same rows of `results`.
// first_position is that of row 0. Both must outlive the stretch.
Stretch StretchOf(const Positions& positions, size_t first, size_t count, uint64_t sequence_key,
                  uint32_t first_position, Results& results);

// All positions as one stretch.
Results Evaluate(const Backend& backend, const EvaluateParameters& parameters,
                 uint64_t sequence_key, uint32_t first_position, const Positions& positions);

// Byte for byte.
testing::AssertionResult SameBytes(const Results& left, const Results& right);

}  // namespace sis
