// Encodes the totals of a draw for the store.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/cache/step_ledger.h"

namespace sis {

std::string EncodeStep(const StepLedger::Step& step);
// Returns DataLoss for bytes that EncodeStep did not make.
absl::StatusOr<StepLedger::Step> ParseStep(std::string_view payload);

}  // namespace sis
