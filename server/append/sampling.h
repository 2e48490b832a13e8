// Checks how a worker says that it made its log-probs.
#pragma once

#include "absl/status/status.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Returns InvalidArgument if a setting is out of range, or if the log-probs are RAW and a setting
// changes the distribution.
absl::Status CheckSampling(const v1::Sampling& sampling);

}  // namespace sis
