// Checks that a backend gives the same bytes as another. Runs before a device is used.
#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/evaluate/staged_backend.h"

namespace sis::cuda {

// Evaluates a few hundred positions of a block in each encoding: staged, copied to resident memory,
// and read there. Returns an error of the stages, or Internal if a byte differs from those of
// `reference`.
absl::Status SelfCheck(const StagedBackend& backend, const Backend& reference);

}  // namespace sis::cuda
