// Parses the base algorithm of a request.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/decide/algorithms/algorithm.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Sets unset parameters to their defaults. Returns InvalidArgument, naming the parameter, if a
// parameter is out of range.
absl::StatusOr<Algorithm> ParseAlgorithm(const v1::Algorithm& message);

}  // namespace sis
