// The logits of a request's DENSE form, wherever they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/decide/dense/dense.h"
#include "server/wire/received_arrays.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Consecutive positions of a sequence, whose values stand together in a request.
struct PositionRange {
  uint32_t first_position;
  size_t count;
  size_t offset;  // of the first one in the request
};

class DenseLogits {
 public:
  // Room for a row: one is copied at a time, unless it can be read where it lies.
  struct Scratch {
    std::vector<float> floats;
    std::vector<uint16_t> halves;
    std::vector<int32_t> sampled_ids;
  };

  // Of `count` positions. InvalidArgument names the field.
  static absl::StatusOr<DenseLogits> Parse(const v1::Dense& dense, const ReceivedArrays& arrays,
                                           size_t count, int32_t vocabulary_size);

  int32_t vocabulary_size() const { return vocabulary_size_; }
  // Whether the request tells the sampled tokens.
  bool has_sampled_ids() const { return sampled_ids_.size() != 0; }

  // log p at the recorded ids [count, slots] and of the recorded tokens. InvalidArgument names
  // position, id and value; FailedPrecondition where the request tells another sampled token.
  absl::Status Gather(const PositionRange& positions, std::span<const int32_t> recorded_sampled_ids,
                      std::span<const int32_t> recorded_ids, int slots, const GatherOutput& output,
                      Scratch& scratch) const;
  // log p of the request's own sampled tokens, which it must have.
  absl::Status GatherSampled(const PositionRange& positions, std::span<float> sampled_log_probs,
                             Scratch& scratch) const;

 private:
  absl::Status GatherRow(size_t offset, uint32_t position, std::span<const int32_t> sampled_id,
                         std::span<const int32_t> ids, const GatherOutput& output,
                         Scratch& scratch) const;

  LogitType type_ = LogitType::kFloat32;
  int32_t vocabulary_size_ = 0;
  ArrayField logits_;
  ArrayField sampled_ids_;
};

}  // namespace sis
