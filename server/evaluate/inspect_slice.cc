// Keeps results and records of single positions for inspection.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/block/pack.h"
#include "kernels/block/read.h"
#include "server/evaluate/slice_evaluator.h"

namespace sis {

void SliceEvaluator::KeepRecords(const SliceRange& slice, const Sequence::Reader& reader,
                                 uint32_t first, InspectedPositions& positions) const {
  const auto count = static_cast<uint32_t>(positions.size());
  reader.ForEachPiece(first, count, [&](const Sequence::Reader::Piece& piece) {
    if (ReasonMissing(slice, piece).has_value()) return;
    const std::vector<std::byte> bytes = SliceBlock(piece.block->view(), piece.index, piece.count);
    const absl::StatusOr<BlockView> block = OpenBlock(bytes, /*checksums=*/false);
    if (!block.ok()) return;  // it became corrupt since its last check
    const auto part = [&](auto& array, size_t width) {
      return std::span(array).subspan((piece.first_position - first) * width, piece.count * width);
    };
    ReadBlockIdRows(*block, positions.slots, part(positions.top_k_ids, positions.slots));
    ReadBlockLogProbRows(*block, positions.slots, part(positions.top_k_log_probs, positions.slots));
    const std::span<int32_t> sampled_ids = part(positions.sampled_ids, 1);
    for (uint32_t i = 0; i < piece.count; ++i) {
      sampled_ids[i] = BlockId(block->sampled_ids, i, block->header.id_bytes);
    }
    std::copy_n(block->sampled_log_probs, piece.count,
                part(positions.sampled_log_probs, 1).begin());
    std::ranges::fill(part(positions.staleness, 1),
                      static_cast<int64_t>(versions_.policy - piece.block->policy_version()));
  });
}

void SliceEvaluator::Keep(const Part& part, uint32_t first, InspectedPositions& positions) const {
  const auto copy = [](const auto& from, auto& to, size_t row) {
    std::ranges::copy(from, to.begin() + static_cast<std::ptrdiff_t>(row));
  };
  copy(part.output.view.decisions, positions.decisions, part.first - first);
  for (const Missing& range : part.result.missing) {
    std::ranges::fill(
        std::span(positions.missing_reasons).subspan(range.first_position - first, range.count),
        static_cast<uint8_t>(range.reason));
  }
  for (const BackendRange& range : ranges_) {
    const size_t row = range.first_position - first;
    copy(range.output.acceptance_probabilities, positions.acceptance_probabilities, row);
    copy(range.output.log_ratios, positions.log_ratios, row);
    copy(range.output.log_envelopes, positions.log_envelopes, row);
    copy(range.output.covered_masses, positions.covered_masses, row);
    const float* from = range.current.log_probs.data();
    for (size_t i = 0; i < range.output.decisions.size() && !range.current.reduced(); ++i) {
      const size_t used = range.behavior.counts[i];
      std::copy_n(from, used, positions.current_log_probs.data() + (row + i) * positions.slots);
      from += used;
    }
  }
}

}  // namespace sis
