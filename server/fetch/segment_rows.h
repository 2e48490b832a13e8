// The rows of a FetchTopK on their way to shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/fetch/row_reader.h"
#include "server/threads/worker_pool.h"
#include "server/wire/answers_in_segment.h"
#include "server/wire/received_arrays.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Cut into stretches of slices, which workers copy side by side. Used by one thread at a time.
class SegmentRows {
 public:
  // Into the request's `answers`: InvalidArgument as from AnswersInSegment::Parse. Where ragged
  // rows go is known from the used slots of the source's summaries. The source must outlive the
  // object.
  static absl::StatusOr<SegmentRows> Open(FetchSource& source, const v1::FetchTopKRequest& request,
                                          const ReceivedArrays& arrays, size_t most_stretches);

  // Copies the next 4 MiB or so, a millisecond of one thread. Idle workers help: null if there is
  // to be one stretch. Whether there is more to copy.
  bool CopySome(WorkerPool* workers);
  // Once all is copied: says how many rows there are, and where.
  void Locate(v1::FetchTopKChunk& chunk);

 private:
  // Consecutive slices.
  struct Stretch {
    RowReader reader;
    uint64_t row;  // the next, of all rows
    // Its room is [first_slot, end_slot); what is copied ends at next_slot.
    uint64_t first_slot;
    uint64_t next_slot;
    uint64_t end_slot;
  };

  SegmentRows(FetchSource& source, AnswersInSegment answers)
      : source_(&source), answers_(std::move(answers)) {}

  static bool IsCopied(const Stretch& stretch) { return stretch.reader.rows_left() == 0; }
  // The next 128 KiB or so, of one that is not.
  void CopyNext(Stretch& stretch);
  // Where fewer slots came than there is room for, those behind them move up. Returns how many
  // there are.
  uint64_t CloseGaps();
  // Of an array among the answers; the counts of ragged ones are the third.
  static constexpr size_t kCountsIndex = 2;
  size_t IndexOf(v1::RecordArray array) const {
    return array - v1::SAMPLED_IDS + (source_->ragged && array >= v1::TOP_K_IDS ? 1 : 0);
  }

  FetchSource* source_;
  AnswersInSegment answers_;  // of the sizes of all rows
  std::vector<Stretch> stretches_;
};

}  // namespace sis
