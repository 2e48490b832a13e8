// What SliceEvaluator finds at single positions, for a closer look. Few slices are looked at, so
// this is written to be read.
#include <algorithm>
#include <limits>

#include "server/evaluate/slice_evaluator.h"

namespace sis {
namespace {

// The records of a piece, into rows of `positions` from `first` on.
void CopyRecords(const Sequence::Reader::Piece& piece, size_t first, uint64_t policy_version,
                 InspectedPositions& positions) {
  const auto part = [&](auto& array, size_t width) {
    return std::span(array).subspan(first * width, piece.count * width);
  };
  std::vector<uint8_t> ranks(piece.count);
  piece.page->Read(piece.index, {.sampled_ids = part(positions.sampled_ids, 1),
                                 .sampled_log_probs = part(positions.sampled_log_probs, 1),
                                 .ids = part(positions.top_k_ids, positions.slots),
                                 .log_probs = part(positions.top_k_log_probs, positions.slots),
                                 .ranks = ranks});
  std::ranges::fill(part(positions.staleness, 1),
                    policy_version - std::min(policy_version, piece.version));
}

}  // namespace

absl::StatusOr<InspectedPositions> SliceEvaluator::Inspect(const SliceRange& slice, uint32_t count,
                                                           size_t offset) {
  InspectedPositions positions(input_.parameters.slots);
  positions.Resize(count);
  const PositionOutput output{
      .view = {.decisions = positions.decisions,
               .acceptance_probabilities = positions.acceptance_probabilities,
               .log_envelopes = positions.log_envelopes,
               .covered_masses = positions.covered_masses}};
  RangeResult result = NoneYet();
  const uint32_t begin = slice.first_position, end = begin + count;
  if (slice.sequence() == nullptr) {
    for (size_t i = 0; i < count; ++i) {
      positions.decisions[i] = input_.masked(offset + i) ? Decision::kMasked : Decision::kMissing;
    }
    return positions;
  }
  const Sequence::Reader reader(*slice.sequence());
  for (uint32_t from = begin; from < end;) {
    const uint32_t to = std::min(end, (from / Page::kPositions + 1) * Page::kPositions);
    const size_t first = from - begin;
    const Part part{slice,
                    from,
                    offset + first,
                    input_.current.Read(offset + first, to - from, scratch_, /*each_once=*/false),
                    statistics_.Complete(output.Part(first, to - from), to - from),
                    result};
    ForgetStretches();
    absl::Status status;
    reader.ForEachPiece(from, to - from, [&](const Sequence::Reader::Piece& piece) {
      status.Update(AddPiece(part, piece));
      if (ReasonMissing(slice, piece).has_value()) return;
      CopyRecords(piece, piece.first_position - begin, versions_.policy, positions);
    });
    if (status.ok()) status = Decide(part);
    if (!status.ok()) return status;
    AddValues(part, first, positions);
    from = to;
  }
  return positions;
}

void SliceEvaluator::AddValues(const Part& part, size_t first,
                               InspectedPositions& positions) const {
  const size_t slots = positions.slots;
  for (const Stretch& stretch : stretches_) {
    const size_t row = first + (stretch.first_position - part.first);
    const CurrentView& current = stretch.current;
    const CurrentReader reader(current, slots);
    for (size_t i = 0; i < stretch.output.decisions.size(); ++i) {
      positions.log_ratios[row + i] =
          Flush(current.sampled_log_probs[i] - positions.sampled_log_probs[row + i]);
      if (current.reduced()) continue;
      for (size_t slot = 0; slot < slots; ++slot) {
        const size_t index = (row + i) * slots + slot;
        if (positions.top_k_log_probs[index] == kMinusInfinity) break;
        positions.current_log_probs[index] = reader.At(i, slot);
      }
    }
  }
}

}  // namespace sis
