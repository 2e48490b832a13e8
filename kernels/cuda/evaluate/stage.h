// Sends batches to a device and back, one batch at a time.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "kernels/cuda/evaluate/batch.h"

namespace sis::cuda {

// Used by one thread at a time.
class Stage {
 public:
  virtual ~Stage() = default;

  // Buffers for a batch's input, of kStagedInputBytes, and for its results, of kStagedOutputBytes.
  // Callers must not touch them between Start and Finish.
  virtual std::span<std::byte> input() = 0;
  virtual std::span<const std::byte> output() const = 0;

  // Starts the uploads and then the evaluation of the batch in input().
  virtual absl::Status Start(const Batch& batch) = 0;
  // Waits until the results are in output(). After an error here or in Start they are undefined.
  virtual absl::Status Finish() = 0;
};

}  // namespace sis::cuda
