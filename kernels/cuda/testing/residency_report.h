// How fast calls from host memory are evaluated: by the CPU, and by a device with blocks that
// are staged for each call, that are copied to stay, and that are there.
#pragma once

#include <ostream>

#include "absl/status/status.h"
#include "kernels/decide/backend.h"

namespace sis::cuda {

struct ResidencyReportOptions {
  size_t positions = size_t{1} << 20;  // of a round, on all threads
  int rounds = 5;
  int threads = 4;
};

// One line per K, with blocks of 1,024 positions in fixed16; "cut": sets as long as their mass. The
// backend's memory should hold all blocks of a round: else Internal, as if the bytes are not the
// scalar backend's. `cpu` evaluates the same in turn.
absl::Status ReportResidency(const Backend& backend, const Backend& cpu,
                             const ResidencyReportOptions& options, std::ostream& out);

}  // namespace sis::cuda
