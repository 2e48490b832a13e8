// The place through which batches reach a device: one at a time, without waiting for each other.
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

  // Where a batch's input is written and its results are read; of kStagedInputBytes and
  // kStagedOutputBytes. Not to be touched from Start to Finish.
  virtual std::span<std::byte> input() = 0;
  virtual std::span<const std::byte> output() const = 0;

  // Begins to evaluate the batch that is in input(), its uploads first.
  virtual absl::Status Start(const Batch& batch) = 0;
  // Waits until its results are in output(). After an error here or in Start they are anything.
  virtual absl::Status Finish() = 0;
};

}  // namespace sis::cuda
