// The records of a FetchTopK, in shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/page/page.h"
#include "server/fetch/wanted_records.h"
#include "server/wire/received_arrays.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Where a request wants its N rows of K slots: those of all slices side by side in each wanted
// array, so that the trainer has its arrays [N] and [N, K] without copying anything.
class RecordsInSegment {
 public:
  // InvalidArgument if `arrays`, the request's, lie in no segment, or it hasn't such a range, or
  // that is too small: the message says what is needed.
  static absl::StatusOr<RecordsInSegment> Parse(const v1::SegmentRange& range,
                                                const ReceivedArrays& arrays,
                                                const WantedRecords& wanted, uint64_t rows,
                                                uint64_t slots);

  // Copies rows there, of which the first is number `first` of the N; arrays that are not wanted
  // are empty.
  void Write(uint64_t first, const RecordRows& rows) const;
  // Says where all of them are; arrays that are not wanted are empty.
  void Describe(const WantedRecords& wanted, v1::FetchTopKChunk& chunk) const;

 private:
  // `sizes` in bytes, in the order of the arrays below.
  RecordsInSegment(std::shared_ptr<SharedSegment> segment, uint64_t offset,
                   std::span<const uint64_t, 4> sizes, uint64_t slots);

  std::shared_ptr<SharedSegment> segment_;
  uint64_t slots_;
  SegmentPart sampled_ids_, sampled_log_probs_, ids_, log_probs_;
};

}  // namespace sis
