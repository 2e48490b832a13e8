// Times the kernel on data in device memory. For reports.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/evaluate/batch.h"

namespace sis::cuda {

class ResidentBatch {
 public:
  virtual ~ResidentBatch() = default;

  // Makes `copies` copies of `batch`, each in separate memory. Returns an error if the device has
  // too little memory.
  static absl::StatusOr<std::unique_ptr<const ResidentBatch>> New(const Batch& batch,
                                                                  size_t copies);

  // Returns the seconds on the device for the evaluation of all copies.
  virtual absl::StatusOr<double> EvaluateSeconds() const = 0;
  // Returns the seconds of a kernel that only reads `bytes` of the input, at most all of it.
  virtual absl::StatusOr<double> ReadSeconds(size_t bytes) const = 0;
  virtual size_t input_bytes() const = 0;

  // Returns the output of the last copy of an evaluation.
  virtual absl::StatusOr<std::vector<std::byte>> LastOutput() const = 0;
};

}  // namespace sis::cuda
