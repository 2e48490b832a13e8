// The current policy's values in a request, in whichever form, and wherever they lie.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/wire/received_arrays.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

class CurrentArrays {
 public:
  // Memory to read into. What was read before is overwritten.
  struct Scratch {
    std::vector<float> sampled_log_probs;
    std::vector<float> log_probs;
    std::vector<float> log_envelopes;
    std::vector<float> covered_masses;
  };

  // InvalidArgument names the field. What is not float32 log-probs is converted here, as a whole.
  static absl::StatusOr<CurrentArrays> Parse(const v1::EvaluateRequest& request,
                                             const ReceivedArrays& arrays, size_t count,
                                             size_t slots);

  // The positions [first, first + count) of the request.
  CurrentView Read(size_t first, size_t count, Scratch& scratch) const;
  // Only the sampled tokens' log-probs of them.
  std::span<const float> ReadSampled(size_t first, size_t count, std::vector<float>& scratch) const;

 private:
  using Floats = std::shared_ptr<const std::vector<float>>;

  absl::Status ParseGathered(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                             size_t count);
  absl::Status ParseFloat16(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                            size_t count);
  template <typename Logit>
  absl::Status ParseLogits(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                           size_t count);

  size_t slots_ = 0;
  ArrayField sampled_log_probs_;
  ArrayField log_probs_;
  ArrayField log_envelopes_;
  ArrayField covered_masses_;
  // Instead of the fields, where these hold something else.
  Floats converted_sampled_log_probs_;
  Floats converted_log_probs_;
};

}  // namespace sis
