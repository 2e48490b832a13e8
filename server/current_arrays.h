// The current policy's values in a request, in whichever form, and wherever they lie.
#pragma once

#include <cstddef>
#include <cstdint>
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
    // What is converted to log-probs; of both kinds of logits, bfloat16 are the halves.
    std::vector<uint16_t> halves;
    std::vector<uint16_t> sampled_halves;
    std::vector<float> logits;
    std::vector<float> sampled_logits;
    std::vector<double> log_sum_exps;
  };

  // InvalidArgument names the field.
  static absl::StatusOr<CurrentArrays> Parse(const v1::EvaluateRequest& request,
                                             const ReceivedArrays& arrays, size_t count,
                                             size_t slots);

  // The positions [first, first + count) of the request, as float32 log-probs whatever was sent.
  CurrentView Read(size_t first, size_t count, Scratch& scratch) const;
  // Only the sampled tokens' log-probs of them.
  std::span<const float> ReadSampled(size_t first, size_t count, Scratch& scratch) const;

 private:
  absl::Status ParseGathered(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                             size_t count);
  template <typename Value, typename Sampled>
  absl::Status TakeGathered(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                            size_t count);
  bool holds_logits() const {
    return values_ == v1::Gathered::LOGITS || values_ == v1::Gathered::BFLOAT16_LOGITS;
  }
  std::span<const float> ReadLogProbs(size_t first, size_t count, Scratch& scratch) const;

  size_t slots_ = 0;
  // What the first two hold.
  v1::Gathered::Values values_ = v1::Gathered::LOG_PROBS;
  ArrayField sampled_log_probs_;
  ArrayField log_probs_;
  ArrayField log_sum_exps_;
  ArrayField log_envelopes_;
  ArrayField covered_masses_;
};

}  // namespace sis
