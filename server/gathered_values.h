// The GATHERED form in each of its encodings.
#pragma once

#include "absl/status/status.h"
#include "server/evaluate_input.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Lets input.current view the log-probs, converted if they were sent otherwise. input.parameters
// must be set.
absl::Status ParseGathered(const v1::Gathered& gathered, size_t count, EvaluateInput& input);

}  // namespace sis
