// What an EvaluateRequest asks for, checked as far as the request alone tells.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/decide/algorithms/algorithm.h"
#include "kernels/decide/backend.h"
#include "server/evaluate/current_arrays.h"
#include "server/evaluate/observed_correction.h"
#include "server/evaluate/wanted_outputs.h"
#include "server/wire/received_arrays.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// N ids, little-endian, of `width` bytes each; none if they were not sent.
struct SampledIds {
  uint32_t At(size_t i) const {
    uint32_t id = 0;
    for (size_t byte = 0; byte < width; ++byte) id |= uint32_t{bytes[i * width + byte]} << 8 * byte;
    return id;
  }

  std::span<const uint8_t> bytes;
  size_t width = 0;
};

// Of N positions; arrays that were not sent are empty. The request must outlive it.
struct EvaluateInput {
  EvaluateParameters parameters;
  WantedOutputs wanted;
  CurrentArrays current;  // with three policies, the proximal one's values
  // [N] of these, with three policies or an algorithm.
  std::span<const float> sampled_log_probs;
  std::span<const uint8_t> mask;               // [N], 0 or 1
  std::span<const float> own_log_probs;        // [N]
  SampledIds sampled_ids;                      // [N], the trainer's
  std::span<const float> decoupled_log_probs;  // [N], the current policy's, with three
  std::span<const float> advantages;           // [N]
  v1::Weight weight = v1::SAMPLED;
  std::optional<Algorithm> algorithm;
  std::vector<ObservedCorrection> observe;
  // What spans view that can't view the request, as its arrays do not lie in one piece.
  struct Copies {
    std::vector<int> prefix_curve;
    std::vector<uint8_t> mask;
    std::vector<float> own_log_probs;
    std::vector<uint8_t> sampled_ids;
    std::vector<float> decoupled_log_probs;
    std::vector<float> advantages;
    CurrentArrays::Scratch current;
  };
  std::unique_ptr<Copies> copies = std::make_unique<Copies>();

  bool decoupled() const { return !decoupled_log_probs.empty(); }
  bool masked(size_t i) const { return !mask.empty() && mask[i] == 0; }
};

// Of `count` positions. InvalidArgument names field, position and value. The request and its arrays
// must outlive the result.
absl::StatusOr<EvaluateInput> ParseEvaluateInput(const v1::EvaluateRequest& request,
                                                 const ReceivedArrays& arrays,
                                                 const RunConfig& config, size_t count);

}  // namespace sis
