// The parsed form of an EvaluateRequest. Checks everything that does not depend on records.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/decide/algorithms/algorithm.h"
#include "kernels/decide/backend.h"
#include "server/evaluate/current_arrays.h"
#include "server/evaluate/observed_correction.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// N ids, little-endian, of `width` bytes each; empty if the request has none.
struct SampledIds {
  uint32_t At(size_t i) const {
    uint32_t id = 0;
    for (size_t byte = 0; byte < width; ++byte) id |= uint32_t{bytes[i * width + byte]} << 8 * byte;
    return id;
  }

  std::span<const uint8_t> bytes;
  size_t width = 0;
};

// A checked request of N positions. Its arrays are views of the request, which must outlive it.
// Arrays that were not sent are empty.
struct EvaluateInput {
  EvaluateInput() = default;
  EvaluateInput(EvaluateInput&&) = default;

  EvaluateParameters parameters;
  uint32_t outputs = 0;   // one bit per wanted v1::Output
  CurrentArrays current;  // with three policies, the proximal policy's values
  // [N], the sampled log-probs in `current`; set with three policies or an algorithm.
  std::span<const float> sampled_log_probs;
  std::span<const uint8_t> mask;               // [N], 0 or 1
  std::span<const float> own_log_probs;        // [N]
  SampledIds sampled_ids;                      // [N], the trainer's
  std::span<const float> decoupled_log_probs;  // [N], the current policy's, with three policies
  std::span<const float> advantages;           // [N]
  v1::Weight weight = v1::WEIGHT_SAMPLED;
  std::optional<Algorithm> algorithm;
  std::vector<ObservedCorrection> observe;
  std::vector<int> prefix_curve;  // viewed by `parameters`

  bool wants(v1::Output output) const { return (outputs >> output & 1) != 0; }
  bool wants_weights() const {
    return wants(v1::OUTPUT_SURROGATES) || wants(v1::OUTPUT_COEFFICIENTS);
  }
  // Returns true if an output needs the trainer's own log-prob at MISSING positions.
  bool needs_every_ratio() const {
    return wants(v1::OUTPUT_RATIOS) || wants(v1::OUTPUT_LOG_RATIOS) || wants_weights() || algorithm;
  }
  bool decoupled() const { return !decoupled_log_probs.empty(); }
  bool masked(size_t i) const { return !mask.empty() && mask[i] == 0; }
};

// Checks a request of `count` positions. Returns InvalidArgument, naming field, position and value.
absl::StatusOr<EvaluateInput> ParseEvaluateInput(const v1::EvaluateRequest& request,
                                                 const RunConfig& config, size_t count);

}  // namespace sis
