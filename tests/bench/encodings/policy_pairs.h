// What the encodings are measured on: V_K of a behaviour policy, with the current policy's
// log-probs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sis {

struct PolicyPair {
  std::vector<float> behavior;  // [K], sorted; -inf if unused
  std::vector<float> current;   // [K]
};

struct PolicyPairs {
  std::string name;
  int slots;
  std::vector<PolicyPair> positions;
};

// Positions of a vocabulary of 32768 whose logits fall like Zipf's law, often with one token far
// ahead: half of the positions give their top token more than 0.93. The current policy's logits
// have normal noise of the given size.
PolicyPairs LlmLikePairs(std::string name, int slots, double drift, int positions);

// One model's top 5, recorded twice: on a CPU (the behaviour policy) and on a GPU (the current
// one), up to the first token in which the two runs differ. Positions whose sets differ are left
// out.
absl::StatusOr<PolicyPairs> RecordedPairs(std::string name, const std::string& cpu_path,
                                          const std::string& gpu_path);

// The top 5 of one recording, with noise as in LlmLikePairs for a current policy.
absl::StatusOr<PolicyPairs> RecordedSetsWithDrift(std::string name, const std::string& path,
                                                  double drift);

}  // namespace sis
