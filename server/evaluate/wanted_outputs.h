// The output arrays that an Evaluate returns.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

class WantedOutputs {
 public:
  // Returns InvalidArgument for an unknown output. A request without outputs gets ACCEPT_BITS.
  static absl::StatusOr<WantedOutputs> Parse(const v1::EvaluateRequest& request);

  bool Has(v1::Output output) const { return (bits_ >> output & 1) != 0; }
  // Returns true if a wanted output needs the trainer's own log-prob at MISSING positions.
  bool NeedEveryRatio() const;

 private:
  uint32_t bits_ = 0;
};

}  // namespace sis
