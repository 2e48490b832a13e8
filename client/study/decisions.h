// What a trainer and who decides for it, the service or its kernels, tell each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/decide/decide.h"

namespace sis::study {

// The behaviour policy's log-probs of one rollout: N responses of up to `length` tokens.
struct Records {
  uint64_t rollout;
  int top_k;      // K
  size_t length;  // rows of a response in the arrays; those behind its end hold anything
  std::vector<size_t> lengths;           // [N]
  std::vector<int32_t> sampled_ids;      // [N, length]
  std::vector<float> sampled_log_probs;  // [N, length]
  // [N, length]; those that the engine gave, where the trainer has recomputed the others.
  std::vector<float> engine_log_probs;
  std::vector<int32_t> ids;      // [N, length, K], most probable first, ties by id
  std::vector<float> log_probs;  // [N, length, K]

  std::string SequenceId(size_t response) const {
    return std::to_string(rollout) + "." + std::to_string(response);
  }
};

// The current policy's values for some responses of the rollout, one after the other without gaps.
struct MiniBatch {
  uint64_t draw;
  std::vector<size_t> responses;
  std::vector<float> log_probs;          // [n, K], at the recorded ids
  std::vector<float> sampled_log_probs;  // [n]
  std::vector<float> advantages;         // [n]
};

// [n] each.
struct Decided {
  std::vector<Decision> decisions;
  std::vector<float> acceptance_probabilities;
  std::vector<float> log_modified_ratios;
  // The derivative of a token's objective is coefficient * advantage * grad log p(y).
  std::vector<float> coefficients;

  friend bool operator==(const Decided&, const Decided&) = default;
};

}  // namespace sis::study
