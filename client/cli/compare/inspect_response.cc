#include "client/cli/compare/inspect_response.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace sis {
namespace {

// The bytes of an array in the API are little-endian, as this machine is.
template <typename Value>
std::string Bytes(const std::vector<Value>& values) {
  static_assert(std::is_trivially_copyable_v<Value>);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

}  // namespace

v1::InspectSequenceResponse InspectResponse(const RecordedSets& behavior,
                                            const RecordedSets& current, int top_k,
                                            const std::vector<DecidedPosition>& decided) {
  const size_t length = decided.size(), slots = static_cast<size_t>(top_k);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<uint8_t> decisions;
  std::vector<int32_t> sampled_ids, ids(length * slots, -1);
  std::vector<uint32_t> uniforms;
  std::vector<float> sampled_log_probs, log_ratios, acceptance_probabilities, log_envelopes,
      residual_masses, log_probs(length * slots, -kInfinity),
      current_log_probs(length * slots, std::nanf(""));
  for (size_t t = 0; t < length; ++t) {
    decisions.push_back(static_cast<uint8_t>(decided[t].decision));
    sampled_ids.push_back(behavior[t].sampled_id);
    sampled_log_probs.push_back(behavior[t].sampled_log_prob);
    log_ratios.push_back(decided[t].log_ratio);
    acceptance_probabilities.push_back(decided[t].acceptance_probability);
    log_envelopes.push_back(decided[t].log_envelope);
    residual_masses.push_back(decided[t].residual_mass);
    uniforms.push_back(decided[t].uniform);
    for (size_t slot = 0; slot < std::min(slots, behavior[t].top.size()); ++slot) {
      const ListedToken& token = behavior[t].top[slot];
      ids[t * slots + slot] = token.id;
      log_probs[t * slots + slot] = token.log_prob;
      if (const auto log_prob = current[t].LogProbOf(token.id)) {
        current_log_probs[t * slots + slot] = *log_prob;
      }
    }
  }
  v1::InspectSequenceResponse response;
  response.set_top_k(static_cast<uint32_t>(top_k));
  response.set_decisions(Bytes(decisions));
  response.set_sampled_ids(Bytes(sampled_ids));
  response.set_sampled_log_probs(Bytes(sampled_log_probs));
  response.set_log_ratios(Bytes(log_ratios));
  response.set_acceptance_probabilities(Bytes(acceptance_probabilities));
  response.set_log_envelopes(Bytes(log_envelopes));
  response.set_residual_masses(Bytes(residual_masses));
  response.set_uniforms(Bytes(uniforms));
  response.set_staleness(Bytes(std::vector<uint64_t>(length)));
  response.set_top_k_ids(Bytes(ids));
  response.set_top_k_log_probs(Bytes(log_probs));
  response.set_current_log_probs(Bytes(current_log_probs));
  return response;
}

}  // namespace sis
