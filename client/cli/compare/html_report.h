// The comparison as one HTML file that needs no other and no network: the verdict with its
// evidence, percentiles, all positions, and each sequence under the microscope in both directions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/compare/comparison.h"

namespace sis {

absl::StatusOr<std::string> HtmlReport(const Comparison& comparison);

}  // namespace sis
