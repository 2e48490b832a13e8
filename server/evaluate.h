// Evaluate: from a request to decisions, ratios and sums.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/run.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// As Evaluate of the API. On an error nothing has changed, but for the lease and the
// sequences that were named: they count as used.
absl::StatusOr<v1::EvaluateResponse> Evaluate(Run& run, const Backend& backend,
                                              const v1::EvaluateRequest& request);

v1::Totals ToTotals(const Sums& sums);

}  // namespace sis
