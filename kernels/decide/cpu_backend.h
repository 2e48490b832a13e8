// The backend of machines without a GPU.
#pragma once

#include <memory>

#include "kernels/decide/backend.h"

namespace sis {

// The fastest one that the CPU runs.
std::unique_ptr<const Backend> CpuBackend();

}  // namespace sis
