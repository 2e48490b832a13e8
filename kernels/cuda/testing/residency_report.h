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

// Prints one line per K, with blocks of 1,024 positions in fixed16; "cut": sets cut to their mass.
// Evaluates on `backend` and `cpu` in turn. Returns Internal if the backend's memory does not hold
// all blocks of a round, or if its bytes differ from the scalar backend's.
absl::Status ReportResidency(const Backend& backend, const Backend& cpu,
                             const ResidencyReportOptions& options, std::ostream& out);

}  // namespace sis::cuda
