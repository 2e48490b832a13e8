// The history of a run's draws as it is stored (docs/page_format.md, "A stored history").
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/cache/step_history.h"

namespace sis {

std::string EncodeHistory(const StepHistory& history);
// DataLoss for bytes that the encoder did not make. Sums of what it returns stay finite.
absl::StatusOr<StepHistory> ParseHistory(std::string_view payload);

}  // namespace sis
