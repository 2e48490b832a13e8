// The current policy's values, as an Evaluate request sends them.
#pragma once

#include <variant>
#include <vector>

#include "client/replicas/evaluate_batches.h"
#include "client/types/types.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// The current policy's values, in one of the forms that a request has.
using EvaluateForm = std::variant<GatheredValues, GatheredHalves, LogitValues, ReducedValues,
                                  TopKSetValues, DenseValues>;

// Writes what the form needs besides its arrays into a request that holds the slices, and returns
// the arrays; they lie where the values' do.
std::vector<PositionArray> WriteForm(const EvaluateForm& current, v1::EvaluateRequest& request);

}  // namespace sis
