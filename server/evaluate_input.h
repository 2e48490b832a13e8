// What an EvaluateRequest asks for, checked as far as the request alone tells.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/algorithms/algorithm.h"
#include "kernels/algorithms/authors_code.h"
#include "kernels/backend.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

struct WantedOutputs {
  bool accept_bits = false;
  bool decisions = false;
  bool ratios = false;
  bool log_ratios = false;
  bool acceptance_probabilities = false;
  bool surrogates = false;
  bool coefficients = false;

  // Something that a MISSING position has only with the trainer's own log-prob.
  bool need_every_ratio() const { return ratios || log_ratios || surrogates || coefficients; }
};

enum class WeightKind { kSampled, kExpected };

// Views into the request, or a part of its positions. N positions; arrays that were not sent are
// empty.
struct EvaluateInput {
  EvaluateParameters parameters;
  WantedOutputs wanted;
  CurrentView current;                         // with three policies, the proximal one's values
  std::span<const uint8_t> mask;               // [N], 0 or 1
  std::span<const float> own_log_probs;        // [N]
  std::span<const float> decoupled_log_probs;  // [N], the current policy's, with three
  std::span<const float> advantages;           // [N]
  WeightKind weight = WeightKind::kSampled;
  std::optional<AuthorsCode> authors_code;
  std::optional<Algorithm> algorithm;
  // What parameters.prefix_curve views.
  std::shared_ptr<const std::vector<int>> prefix_curve;
  // What `current` views where the values were not sent as float32 log-probs.
  std::shared_ptr<const std::vector<float>> converted;

  bool decoupled() const { return !decoupled_log_probs.empty(); }
  bool masked(size_t i) const { return !mask.empty() && mask[i] == 0; }

  // Positions [first, first + count).
  EvaluateInput Part(size_t first, size_t count) const;
  // Their current values alone, which is quicker.
  CurrentView CurrentPart(size_t first, size_t count) const;
};

// Of `count` positions. InvalidArgument names field, position and value. The request must outlive
// the result.
absl::StatusOr<EvaluateInput> ParseEvaluateInput(const v1::EvaluateRequest& request,
                                                 const v1::RunConfig& config, size_t count);

}  // namespace sis
