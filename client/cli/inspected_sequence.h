// The arrays of an InspectSequenceResponse, for printing.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "sis/v1/ratio_service.pb.h"

namespace sis {

// T positions of K slots, row-major; what each holds stands in the message.
struct InspectedSequence {
  explicit InspectedSequence(const v1::InspectSequenceResponse& response)
      : draw(response.draw()),
        first_position(response.first_position()),
        slots(response.top_k()),
        decisions(Array<uint8_t>(response.decisions())),
        sampled_ids(Array<int32_t>(response.sampled_ids())),
        sampled_log_probs(Array<float>(response.sampled_log_probs())),
        log_ratios(Array<float>(response.log_ratios())),
        acceptance_probabilities(Array<float>(response.acceptance_probabilities())),
        log_envelopes(Array<float>(response.log_envelopes())),
        residual_masses(Array<float>(response.residual_masses())),
        uniforms(Array<uint32_t>(response.uniforms())),
        staleness(Array<uint64_t>(response.staleness())),
        top_k_ids(Array<int32_t>(response.top_k_ids())),
        top_k_log_probs(Array<float>(response.top_k_log_probs())),
        current_log_probs(Array<float>(response.current_log_probs())),
        cut_begin(response.cut_begin()),
        cut_end(response.cut_end()) {}

  template <typename T>
  static std::vector<T> Array(const std::string& bytes) {
    std::vector<T> array(bytes.size() / sizeof(T));
    if (!array.empty()) std::memcpy(array.data(), bytes.data(), array.size() * sizeof(T));
    return array;
  }
  bool scored(size_t i) const {
    return decisions[i] == v1::ACCEPTED || decisions[i] == v1::REJECTED ||
           decisions[i] == v1::OUTSIDE_TOP_K;
  }

  uint64_t draw;
  uint32_t first_position;
  size_t slots;
  std::vector<uint8_t> decisions;
  std::vector<int32_t> sampled_ids;
  std::vector<float> sampled_log_probs, log_ratios, acceptance_probabilities, log_envelopes,
      residual_masses;
  std::vector<uint32_t> uniforms;
  std::vector<uint64_t> staleness;
  std::vector<int32_t> top_k_ids;
  std::vector<float> top_k_log_probs, current_log_probs;
  uint32_t cut_begin, cut_end;
};

}  // namespace sis
