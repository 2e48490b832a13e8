// What Evaluate can be asked.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "client/replicas/evaluate_batches.h"
#include "client/types/types.h"
#include "kernels/decide/algorithms/algorithm_input.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Arrays hold one element per position, slice by slice; empty: not sent. What each means is in
// EvaluateRequest (proto/sis/v1/evaluate.proto).
struct EvaluateOptions {
  // The trainer's optimiser step: the same draw gives the same decisions.
  uint64_t draw = 0;
  // Use only the k most probable slots; 0 means all K.
  uint32_t top_k = 0;
  // Renewed by the call; 0 means none.
  uint64_t lease_id = 0;
  std::vector<v1::Output> outputs = {v1::ACCEPT_BITS};
  // Gathered values only: residual mass and expected acceptance if only so many slots were used,
  // for each of these k, rising, at most 16.
  std::vector<uint32_t> prefix_curve = {};
  // Gathered values only: also sum the policies' total variation on the sets.
  bool total_variation = false;
  // What the modified ratio is.
  v1::Weight weight = v1::SAMPLED;
  // 0 where the policy did not generate the token, else 1.
  std::span<const uint8_t> mask = {};  // [N]
  // For the ratios of MISSING positions. The form's sampled values must then be of the trainer's
  // own tokens there (client/api/gather.h).
  std::span<const float> own_log_probs = {};  // [N]
  // With three policies: the current one's; the other values are then the proximal one's.
  std::span<const float> decoupled_log_probs = {};  // [N]
  // For SURROGATES and COEFFICIENTS (docs/algorithms.md).
  std::optional<v1::Algorithm> algorithm = std::nullopt;
  std::span<const float> advantages = {};  // [N]
  // The tokens of the trainer's batch: FailedPrecondition if others are recorded.
  std::span<const int32_t> sampled_ids = {};  // [N]
  // GSPO, one per slice: the sums of whole sequences, where other machines hold parts of them.
  std::vector<LogRatioSum> log_ratio_sums = {};
  // Corrections to watch beside the one that is asked for: Evaluation::corrections says what each
  // would have made of the same ratios.
  std::vector<v1::ObservedCorrection> observe = {};

  // Whether an output depends on the batch as a whole, so that the request is not cut into smaller
  // ones: Clip-Cov's choice, and GSPO's sums where a sequence has several slices and its sum is not
  // given.
  bool needs_one_request(std::span<const Slice> slices) const;
};

// Writes all but the arrays into a request that holds the slices. InvalidArgument if sampled_ids or
// log_ratio_sums have the wrong length; the server checks the others.
absl::Status WriteOptions(const EvaluateOptions& options, v1::EvaluateRequest& request);

// The sampled ids as EvaluateRequest has them: as many bytes each as the largest unmasked one
// needs.
struct SampledIdBytes {
  std::vector<std::byte> bytes;
  size_t width;
};
SampledIdBytes PackSampledIds(const EvaluateOptions& options);

// The arrays that are sent; they lie where the options' and `sampled_ids` do.
std::vector<PositionArray> OptionArrays(const EvaluateOptions& options,
                                        const SampledIdBytes& sampled_ids);

}  // namespace sis
