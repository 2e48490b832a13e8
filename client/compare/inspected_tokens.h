// Tokens that a server has inspected, as a pair of recordings: A is the behaviour policy, as the
// run recorded it, B the current one, as it was evaluated.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/compare/decisions.h"
#include "client/compare/left_out.h"
#include "client/recorded/recorded_sets.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

struct InspectedTokens {
  RecordedPair pair;
  Decisions decisions;  // the server's
  // Positions without a ratio, by the server's decision.
  std::vector<LeftOut> left_out;
};

// Internal if an array has another length than the others say.
absl::StatusOr<InspectedTokens> ReadInspectedTokens(
    std::span<const v1::InspectSequenceResponse> sequences);

}  // namespace sis
