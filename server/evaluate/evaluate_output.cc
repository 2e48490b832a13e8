#include "server/evaluate/evaluate_output.h"

#include <string>

#include "server/evaluate/accept_bits.h"
#include "server/messages/arrays.h"

namespace sis {
PositionOutput PositionOutput::Part(size_t first, size_t count) const {
  const auto part = [&](auto array) { return array.empty() ? array : array.subspan(first, count); };
  return {.view = {.decisions = part(view.decisions),
                   .acceptance_probabilities = part(view.acceptance_probabilities),
                   .log_modified_ratios = part(view.log_modified_ratios),
                   .modified_ratios = part(view.modified_ratios),
                   .log_ratios = part(view.log_ratios),
                   .log_envelopes = part(view.log_envelopes),
                   .covered_masses = part(view.covered_masses)},
          .reference_log_probs = part(reference_log_probs),
          .total_variations = part(total_variations)};
}

EvaluateOutput::EvaluateOutput(const EvaluateInput& input, size_t count,
                               v1::EvaluateResponse& response)
    : input_(input), response_(response) {
  const auto floats = [&](v1::Output output, std::string& field) {
    return input.wants(output) ? ResizeArray<float>(field, count) : std::span<float>();
  };
  positions_.view = {
      .decisions = ResizeArray<Decision>(*response.mutable_decisions(), count),
      .acceptance_probabilities =
          floats(v1::OUTPUT_ACCEPTANCE_PROBABILITIES, *response.mutable_acceptance_probabilities()),
      .log_modified_ratios = floats(v1::OUTPUT_LOG_RATIOS, *response.mutable_log_ratios()),
      .modified_ratios = floats(v1::OUTPUT_RATIOS, *response.mutable_ratios())};
  if (!input.algorithm) return;
  if (ReadsTotalVariations(*input.algorithm)) positions_.total_variations = Own(count);
  positions_.reference_log_probs = Own(count);
  if (!input.wants(v1::OUTPUT_LOG_RATIOS)) {
    positions_.view.log_modified_ratios = Own(count);
  }
  if (WeighsByAcceptance(*input.algorithm) && !input.wants(v1::OUTPUT_ACCEPTANCE_PROBABILITIES)) {
    positions_.view.acceptance_probabilities = Own(count);
  }
}

std::span<float> EvaluateOutput::Own(size_t count) { return own_.emplace_back(count); }

void EvaluateOutput::Finish() {
  if (input_.wants(v1::OUTPUT_ACCEPT_BITS)) {
    response_.set_accept_bits(PackAcceptBits(positions_.view.decisions));
  }
  if (!input_.wants(v1::OUTPUT_DECISIONS)) response_.clear_decisions();
}

}  // namespace sis
