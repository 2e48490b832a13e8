// The current policy's values, as an Evaluate request sends them.
#pragma once

#include <variant>
#include <vector>

#include "client/replicas/evaluate_batches.h"
#include "client/types/types.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// The current policy's values, in one of the forms that a request has.
using EvaluateForm = std::variant<GatheredValues, ReducedValues>;

// The arrays of the form; they lie where the values' do.
std::vector<PositionArray> FormArrays(const EvaluateForm& current);

}  // namespace sis
