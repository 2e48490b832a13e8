// Evaluates ranges of a slice's positions against the cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/evaluate_input.h"
#include "server/missing.h"
#include "server/run.h"
#include "server/slices.h"

namespace sis {

// Where the results of a range of positions go. As OutputView, and what a base algorithm needs.
struct SliceOutput {
  OutputView view;
  std::span<float> reference_log_probs = {};  // [n], log q, or the trainer's own where missing
  std::span<float> total_variations = {};     // [n], see TopKTotalVariation
  // Added to, one per point of the curve; the same for every part. Empty if not wanted.
  std::span<PrefixSums> prefix_sums = {};

  SliceOutput Part(size_t first, size_t count) const;
};

// What came of a range of positions.
struct RangeResult {
  Sums sums;
  std::vector<Missing> missing;
};

// For one call, by one thread.
class SliceEvaluator {
 public:
  SliceEvaluator(const Run& run, const Backend& backend)
      : backend_(backend), oldest_fresh_version_(run.oldest_fresh_version()) {}

  // Positions [first, first + count) of the slice's sequence; input and output are theirs alone.
  absl::StatusOr<RangeResult> Evaluate(const SliceRange& slice, uint32_t first, uint32_t count,
                                       const EvaluateInput& input, const SliceOutput& output);

 private:
  // What a call works on.
  struct Range {
    const SliceRange& slice;
    uint32_t first;
    const EvaluateInput& input;
    const SliceOutput& output;
    RangeResult& result;
  };

  absl::Status AddMissingPositions(const Range& range, uint32_t position, uint32_t count,
                                   v1::MissingReason reason) const;
  absl::Status AddPiece(const Range& range, const Sequence::Reader::Piece& piece);
  // Evaluates the segments that were added.
  void Decide(const Range& range);

  const Backend& backend_;
  const uint64_t oldest_fresh_version_;
  std::vector<Segment> segments_;
  std::vector<float> acceptance_probabilities_;
};

}  // namespace sis
