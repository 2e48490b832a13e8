// Base algorithms, from their message.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/decide/algorithms/algorithm.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// With the defaults where parameters are unset. InvalidArgument names the parameter.
absl::StatusOr<Algorithm> ParseAlgorithm(const v1::Algorithm& message);

}  // namespace sis
