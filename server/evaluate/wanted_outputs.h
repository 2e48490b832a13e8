// Which arrays an Evaluate answers with.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

class WantedOutputs {
 public:
  // InvalidArgument if one is none of Output's. Where none is given: ACCEPT_BITS.
  static absl::StatusOr<WantedOutputs> Parse(const v1::EvaluateRequest& request);

  bool Has(v1::Output output) const { return (bits_ >> output & 1) != 0; }
  // Whether one is wanted that a MISSING position has only with the trainer's own log-prob.
  bool NeedEveryRatio() const;

 private:
  uint32_t bits_ = 0;
};

}  // namespace sis
