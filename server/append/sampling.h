// How a worker says that its log-probs were made.
#pragma once

#include "absl/status/status.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// InvalidArgument unless the settings make sense, and with RAW log-probs leave the distribution as
// it is.
absl::Status CheckSampling(const v1::Sampling& sampling);

}  // namespace sis
