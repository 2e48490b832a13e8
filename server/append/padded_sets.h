// Ragged sets (Block.top_k_counts), checked and made as wide as the run's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/records/record_view.h"
#include "kernels/records/validate.h"
#include "server/cache/run_config.h"

namespace sis {

// How many slots all positions use. InvalidArgument names the first that uses more than there are.
absl::StatusOr<size_t> SumOfCounts(std::span<const uint16_t> counts, uint32_t first_position,
                                   uint32_t top_k);

// Used by one thread at a time.
class PaddedSets {
 public:
  // The records with sets [T, K], checked, ranks [T] written, and cut: then counts say where, and
  // what stands behind them means nothing. In `sent`, ids and log-probs are of the used slots, one
  // position after the other, as many as the counts [T] say. They are viewed in here until the next
  // call.
  absl::StatusOr<RecordView> Pad(const RecordView& sent, std::span<const uint16_t> counts,
                                 uint32_t first_position, const RunConfig& config,
                                 std::span<uint16_t> ranks, const MassCut& cut);

  // Gives back the memory of arrays of more bytes.
  void ForgetAbove(size_t bytes);

 private:
  std::vector<int32_t> ids_;
  std::vector<float> log_probs_;
};

}  // namespace sis
