// The current policy's log-probs at the recorded slots, where a trainer has all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/types/types.h"

namespace sis {

struct GatheredColumns {
  std::vector<float> log_probs;          // [N, K], or [S] of ragged records
  std::vector<float> sampled_log_probs;  // [N]
  std::vector<uint16_t> top_k_counts;    // [N] of ragged records, else empty

  GatheredValues values() const {
    return {.log_probs = log_probs,
            .sampled_log_probs = sampled_log_probs,
            .top_k_counts = top_k_counts};
  }
};

// log_softmax is [N, V], nats, of the distributions that drew the recorded tokens. In log_probs,
// unused slots and missing positions hold the value of token 0, which the service ignores.
// sampled_ids, [N] or empty, are the trainer's own tokens: they stand in where no token is
// recorded. Where there is none at all (-1, or no sampled_ids) sampled_log_probs is NaN. The
// service ignores that too, unless EvaluateOptions::own_log_probs ask for the ratios of missing
// positions: then it refuses a NaN, as any other number would make a wrong ratio. InvalidArgument
// if an array has the wrong length, or a token is not below V.
absl::StatusOr<GatheredColumns> Gather(const TopKRecords& records,
                                       std::span<const float> log_softmax,
                                       std::span<const int32_t> sampled_ids = {});

}  // namespace sis
