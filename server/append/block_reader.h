// The record blocks of a message's arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/block/block.h"
#include "kernels/block/record_view.h"
#include "server/cache/run.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Used by one thread at a time.
class BlockReader {
 public:
  // Returns the records of `block` as blocks that follow each other, valid until the next call.
  // Returns InvalidArgument, naming the field, if there is no position, a position is beyond the
  // maximum, an array has the wrong length, the checksum differs, or a record is invalid.
  absl::StatusOr<std::span<const BlockView>> Read(const v1::Block& block, const Run& run);

  // The bytes of the arrays that were read last, as they were sent.
  int64_t bytes() const { return bytes_; }

  // Gives back the memory of large copies, which a stream that waits would keep.
  void ForgetLarge();

 private:
  // Makes ragged sets as wide as the run's.
  absl::StatusOr<RecordView> Pad(const RecordView& sent, std::span<const uint16_t> counts,
                                 uint32_t first_position, size_t slots);

  std::vector<int32_t> ids_;      // of ragged sets, padded
  std::vector<float> log_probs_;  // of ragged sets, padded
  std::vector<std::vector<std::byte>> packed_;
  std::vector<BlockView> views_;  // of packed_
  int64_t bytes_ = 0;
};

}  // namespace sis
