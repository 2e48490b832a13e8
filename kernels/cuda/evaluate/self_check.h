// Whether a backend gives the scalar one's bytes: asked of a device before it is used.
#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/evaluate/staged_backend.h"

namespace sis::cuda {

// Evaluates a few hundred positions of a block in each encoding and in both forms, staged, copied
// to where blocks stay, and read there. An error of the stages, or Internal if a byte differs.
absl::Status SelfCheck(const StagedBackend& backend);

}  // namespace sis::cuda
