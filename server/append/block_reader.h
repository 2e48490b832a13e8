// The arrays of a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/records/record_view.h"
#include "server/shared_memory/shared_segment.h"
#include "server/wire/append_request.h"

namespace sis {

// Used by one thread at a time.
class BlockReader {
 public:
  // The arrays lie in `segment`, or in the message if it is null. They are viewed there, or copied
  // into here until the next call. InvalidArgument names the field unless there is at least one
  // position, none at or beyond max_positions, all arrays are as long as they should be, and have
  // the block's checksum.
  absl::StatusOr<RecordView> Read(const AppendEntryView& block, const SharedSegment* segment,
                                  size_t slots, int64_t max_positions);

  // What was read last, cut to a mass target (kernels/records/mass_cut.h), and its ranks with it.
  RecordView Cut(const RecordView& read, size_t slots, double mass, std::span<uint8_t> ranks);

  // Gives back the memory of large copies, which a stream that waits would keep.
  void ForgetLarge();

 private:
  std::vector<int32_t> sampled_ids_;
  std::vector<float> sampled_log_probs_;
  std::vector<int32_t> ids_;
  std::vector<float> log_probs_;
};

}  // namespace sis
