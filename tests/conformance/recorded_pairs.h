// V_K of recorded models, with the current policy's log-probs.
#pragma once

#include <string>
#include <vector>

#include "tests/conformance/policy_pairs.h"

namespace sis {

// One model's top 5, recorded twice: on a CPU (the behaviour policy) and on a GPU (the current
// one), up to the first token in which the two runs differ. Positions whose sets differ are left
// out. Throws std::runtime_error if a file holds no recording.
std::vector<PolicyPair> RecordedPairs(const std::string& cpu_path, const std::string& gpu_path);

// The top 5 of one recording. The current policy's logits have normal noise of the given size.
std::vector<PolicyPair> RecordedSetsWithDrift(const std::string& path, double drift);

}  // namespace sis
