// The arrays of a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/records/record_view.h"
#include "server/append/padded_sets.h"
#include "server/cache/run.h"
#include "server/wire/append_request.h"

namespace sis {

// Used by one thread at a time.
class BlockReader {
 public:
  // The arrays are viewed in the message, or copied into here until the next call. InvalidArgument
  // names the field unless there is at least one position, none beyond the most of a sequence, all
  // arrays are as long as they should be, have the block's checksum, and hold records of the run
  // that are valid once they are cut to its mass. Counts say where. Ragged sets are padded before.
  absl::StatusOr<RecordView> Read(const AppendEntryView& block, const Run& run);
  // Of the sampled tokens that were read last.
  std::span<const uint16_t> ranks() const { return ranks_; }

  // Of the arrays that were read last, as they were sent.
  int64_t bytes() const { return bytes_; }

  // Gives back the memory of large copies, which a stream that waits would keep.
  void ForgetLarge();

 private:
  std::vector<int32_t> sampled_ids_;
  std::vector<float> sampled_log_probs_;
  std::vector<int32_t> ids_;
  std::vector<float> log_probs_;
  std::vector<uint16_t> counts_;
  std::vector<uint16_t> ranks_;
  std::vector<uint16_t> kept_;  // slots, where sets are cut
  PaddedSets padded_;           // where sets are ragged
  int64_t bytes_ = 0;
};

}  // namespace sis
