// Runs the dense kernel where a test asks for it, over memory that host and kernel both see. For
// tests.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "kernels/cuda/dense/dense_block.h"

namespace sis::cuda {

class DenseRunner {
 public:
  virtual ~DenseRunner() = default;

  virtual std::shared_ptr<std::byte> Allocate(size_t bytes) const = 0;
  // Waits for the results.
  virtual absl::Status Run(DenseStep step, const DenseTask& task) const = 0;
};

// On the device; the memory is managed. Allocate aborts if there is none.
std::unique_ptr<const DenseRunner> DenseOnDevice();

}  // namespace sis::cuda
