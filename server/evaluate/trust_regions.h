// The trust regions of a request, and where its slices lie.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/decide/algorithms/sequence_trust_region.h"
#include "server/evaluate/evaluate_input.h"
#include "server/evaluate/evaluate_output.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// InvalidArgument names the region and the field.
absl::StatusOr<std::vector<SequenceTrustRegion>> ParseTrustRegions(
    const v1::EvaluateRequest& request, bool has_every_slot, bool has_advantages);

// Which positions of a slice count for the algorithm as masked.
enum class MaskedPart { kNone, kNegativeAdvantages, kAll };

struct SliceDivergences {
  std::vector<double> values;  // by region
  int64_t positions = 0;       // that count
  MaskedPart left_out = MaskedPart::kNone;

  // Of one of the regions.
  bool outside() const { return left_out != MaskedPart::kNone; }
};

// Of a slice whose positions have been evaluated into `positions`, and begin at `offset` in the
// request.
SliceDivergences DivergencesOf(const EvaluateInput& input, const PositionOutput& positions,
                               size_t offset);

}  // namespace sis
