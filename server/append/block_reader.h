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
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Used by one thread at a time.
class BlockReader {
 public:
  // Returns the records of `block`; they are views of its arrays, or for ragged sets, of padded
  // copies in this object until the next call. If the run cuts sets, `counts` of the result says
  // where. Returns InvalidArgument, naming the field, if there is no position, a position is beyond
  // the maximum, an array has the wrong length, the checksum differs, or a record is invalid.
  absl::StatusOr<RecordView> Read(const v1::Block& block, const Run& run);
  // Of the sampled tokens that were read last.
  std::span<const uint16_t> ranks() const { return ranks_; }

  // Of the arrays that were read last, as they were sent.
  int64_t bytes() const { return bytes_; }

  // Gives back the memory of large copies, which a stream that waits would keep.
  void ForgetLarge();

 private:
  std::vector<uint16_t> ranks_;
  std::vector<uint16_t> kept_;  // slots, where sets are cut
  PaddedSets padded_;           // where sets are ragged
  int64_t bytes_ = 0;
};

}  // namespace sis
