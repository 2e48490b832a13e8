// Positions with everything that evaluating them takes, packed into blocks; and evaluating them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/block/block.h"
#include "kernels/block/record_view.h"
#include "kernels/decide/backend.h"

namespace sis {

// Ids of all positions are below.
inline constexpr int32_t kVocabularySize = 1 << 24;

// n consecutive positions of one sequence, K slots each, row-major.
struct Positions {
  int slots = 0;
  std::vector<int32_t> sampled_ids;               // [n]
  std::vector<float> behavior_sampled_log_probs;  // [n]
  std::vector<int32_t> ids;                       // [n, K], -1 in unused slots
  std::vector<float> behavior_log_probs;          // [n, K], -inf in unused slots
  std::vector<float> current_sampled_log_probs;   // [n]
  std::vector<float> current_log_probs;           // [n, K], empty in the REDUCED form
  std::vector<float> log_envelopes;               // [n], REDUCED
  std::vector<float> covered_masses;              // [n], REDUCED

  size_t size() const { return sampled_ids.size(); }
  RecordView records() const;
};

// How records are packed.
struct Packing {
  BlockEncoding encoding = BlockEncoding::kFloat32;
  double mass = 0;  // where sets are cut; 0: nowhere
};

// A backend's results for n positions.
struct Results {
  explicit Results(size_t n, size_t prefix_points = 0)
      : decisions(n),
        acceptance_probabilities(n),
        log_modified_ratios(n),
        modified_ratios(n),
        log_ratios(n),
        log_envelopes(n),
        covered_masses(n),
        prefix_sums(prefix_points) {}

  // The rows [first, first + count).
  OutputView Output(size_t first, size_t count);

  std::vector<Decision> decisions;
  std::vector<float> acceptance_probabilities;
  std::vector<float> log_modified_ratios;
  std::vector<float> modified_ratios;
  std::vector<float> log_ratios;
  std::vector<float> log_envelopes;
  std::vector<float> covered_masses;
  Sums sums;
  std::vector<PrefixSums> prefix_sums;  // one per point of the curve
};

// Allocates the slack behind a block that is valid, and opens it.
BlockView OpenWithSlack(std::vector<std::byte>& block);

// Positions as backends get them: in blocks as long as they may be, with current log-probs of the
// slots that these use.
class Packed {
 public:
  // Packing must succeed. Blocks and current values begin `offset` floats into allocations that end
  // with them (and the slack), so that a sanitizer sees reads beyond the end.
  Packed(const Positions& positions, uint32_t first_position, Packing packing = {},
         size_t offset = 0);
  Packed(Packed&&) = default;

  size_t size() const { return current_sampled_.size() - offset_; }
  std::span<const BlockView> blocks() const { return blocks_; }
  // How many slots a position uses.
  size_t used(size_t i) const { return slots_before_[i + 1] - slots_before_[i]; }
  // The behaviour log-probs that decisions of the positions [first, first + count) are made with:
  // those of the used slots, as rounded.
  std::span<const float> LogProbs(size_t first, size_t count) const;
  CurrentView Current(size_t first, size_t count) const;

  // How many positions its block has from position i on.
  size_t LeftOfBlock(size_t i) const { return block_positions_ - i % block_positions_; }
  // The positions [first, first + count) of one block, which write to the rows of `results` from
  // `row` on.
  BackendRange RangeOf(size_t first, size_t count, uint64_t sequence_key, Results& results,
                       size_t row) const;

 private:
  size_t offset_;
  size_t block_positions_;  // of all blocks but the last one
  uint32_t first_position_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<BlockView> blocks_;
  std::vector<size_t> slots_before_;  // [n + 1]
  std::vector<float> log_probs_;      // of the used slots
  std::vector<float> current_sampled_;
  std::vector<float> current_log_probs_;  // of the used slots
  std::vector<float> log_envelopes_;
  std::vector<float> covered_masses_;
};

// Evaluates the positions [first, first + count) in one call, ending at the last one. Row 0 of the
// results is position `first`.
Results Evaluate(const Backend& backend, const EvaluateParameters& parameters,
                 uint64_t sequence_key, const Packed& packed, size_t first = 0,
                 size_t count = SIZE_MAX);
// All of them, packed.
Results Evaluate(const Backend& backend, const EvaluateParameters& parameters,
                 uint64_t sequence_key, uint32_t first_position, const Positions& positions,
                 Packing packing = {});

// Byte for byte, in what both have.
testing::AssertionResult SameBytes(const OutputView& left, const OutputView& right);
// And the sums.
testing::AssertionResult SameBytes(Results left, Results right);

}  // namespace sis
