// The base algorithms behind C entry points, for the tests against numpy and autograd.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/decide/algorithms/algorithm.h"
#include "kernels/decide/algorithms/top_k_total_variation.h"

namespace sis {
namespace {

// Returns the algorithm with this name, with its parameters in their order.
Algorithm MakeAlgorithm(const std::string& name, const float* values) {
  for (Algorithm& algorithm : AllAlgorithms()) {
    if (AlgorithmName(algorithm) != name) continue;
    for (const Parameter& parameter : ParametersOf(algorithm)) *parameter.value = *values++;
    return algorithm;
  }
  std::abort();
}

}  // namespace
}  // namespace sis

extern "C" {

// Null: the array is not there, or not wanted. states: sis::TokenState. 0 if all is well; else the
// error is on stderr.
int sis_apply_algorithm(const char* name, const float* parameters, uint64_t parts,
                        const uint64_t* keys, const uint32_t* first_positions,
                        const uint32_t* counts, const uint8_t* states, const float* log_ratios,
                        const float* log_corrections, const float* current_log_probs,
                        const float* reference_log_probs, const float* total_variations,
                        const float* log_importance_ratios, const float* acceptance_probabilities,
                        const float* advantages, uint64_t draw, float* surrogates,
                        float* coefficients) {
  std::vector<sis::SequenceRange> sequence_parts;
  size_t n = 0;
  for (uint64_t i = 0; i < parts; ++i) {
    sequence_parts.push_back({keys[i], first_positions[i], counts[i]});
    n += counts[i];
  }
  const auto span = [n](auto* array) { return std::span(array, array == nullptr ? 0 : n); };
  const sis::AlgorithmInput batch{
      .parts = sequence_parts,
      .states = {reinterpret_cast<const sis::TokenState*>(states), n},
      .log_ratios = span(log_ratios),
      .log_corrections = span(log_corrections),
      .current_log_probs = span(current_log_probs),
      .reference_log_probs = span(reference_log_probs),
      .total_variations = span(total_variations),
      .log_importance_ratios = span(log_importance_ratios),
      .acceptance_probabilities = span(acceptance_probabilities),
      .advantages = span(advantages),
      .draw = draw,
  };
  const sis::AlgorithmOutput output{.surrogates = span(surrogates),
                                    .coefficients = span(coefficients)};
  const sis::Algorithm algorithm = sis::MakeAlgorithm(name, parameters);
  const absl::Status status = sis::CheckAdvantages(algorithm, batch);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  sis::ApplyAlgorithm(algorithm, batch, output);
  return 0;
}

// behavior and current [n, slots], of sampled tokens outside [n]; -inf in behaviour: not there.
void sis_top_k_total_variation(uint64_t n, uint64_t slots, const float* behavior,
                               const float* current, const float* outside_behavior,
                               const float* outside_current, float* total_variations) {
  for (uint64_t i = 0; i < n; ++i) {
    sis::TopKTotalVariation distance;
    for (uint64_t j = 0; j < slots; ++j)
      distance.Add(behavior[i * slots + j], current[i * slots + j]);
    distance.Add(outside_behavior[i], outside_current[i]);
    total_variations[i] = distance.Finish();
  }
}
}
