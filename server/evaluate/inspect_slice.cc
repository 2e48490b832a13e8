// Keeps an evaluation's results at single positions for inspection. Computed values are copied
// during the evaluation. Recorded values are added later, when no call waits for them.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <variant>
#include <vector>

#include "kernels/block/pack.h"
#include "kernels/block/read.h"
#include "server/evaluate/slice_evaluator.h"

namespace sis {
namespace {

// Adds the records of one slice when the sequence is first inspected. Doesn't keep the sequence in
// memory: the client may release it as soon as it has its answer.
struct RecordsOfSlice {
  Run& run;
  SequenceName name;
  std::weak_ptr<const Sequence> sequence;  // to recognise it: only the run gives references
  uint64_t digest;                         // when it was evaluated
  uint32_t first_position;
  uint64_t oldest_fresh_version;
  uint64_t policy_version;

  bool operator()(Inspection::Sequence& inspected) const;
  void AddPiece(const Sequence::Reader::Piece& piece, InspectedPositions& positions) const;
};

bool RecordsOfSlice::operator()(Inspection::Sequence& inspected) const {
  InspectedPositions& positions = inspected.positions;
  positions.ResizeRecorded(positions.size());
  const Run::Found found = run.FindToChange(name);  // inspecting is no use of the sequence
  const auto* held = std::get_if<std::shared_ptr<Sequence>>(&found);
  if (held == nullptr || sequence.owner_before(*held) || held->owner_before(sequence)) return false;
  inspected.annotation = (*held)->annotation();
  const Sequence::Reader reader(**held);
  const auto count = static_cast<uint32_t>(positions.size());
  if (reader.Digest(first_position, count) != digest) return false;
  reader.ForEachPiece(first_position, count,
                      [&](const Sequence::Reader::Piece& piece) { AddPiece(piece, positions); });
  return true;
}

void RecordsOfSlice::AddPiece(const Sequence::Reader::Piece& piece,
                              InspectedPositions& positions) const {
  const size_t first = piece.first_position - first_position;
  const auto part = [&](auto& array, size_t width) {
    return std::span(array).subspan(first * width, piece.count * width);
  };
  if (ReasonMissing(piece, oldest_fresh_version).has_value()) return;
  const std::vector<std::byte> bytes = SliceBlock(piece.block->view(), piece.index, piece.count);
  const absl::StatusOr<BlockView> block = OpenBlock(bytes, /*checksums=*/false);
  if (!block.ok()) return;  // it became corrupt since its last check
  ReadBlockIdRows(*block, positions.slots, part(positions.top_k_ids, positions.slots));
  ReadBlockLogProbRows(*block, positions.slots, part(positions.top_k_log_probs, positions.slots));
  const std::span<int32_t> sampled_ids = part(positions.sampled_ids, 1);
  for (uint32_t i = 0; i < piece.count; ++i) {
    sampled_ids[i] = BlockId(block->sampled_ids, i, block->header.id_bytes);
  }
  std::copy_n(block->sampled_log_probs, piece.count, part(positions.sampled_log_probs, 1).begin());
  std::ranges::fill(part(positions.staleness, 1),
                    static_cast<int64_t>(policy_version - piece.block->policy_version()));
}

}  // namespace

std::function<bool(Inspection::Sequence&)> SliceEvaluator::RecordsOf(Run& run,
                                                                     const SliceRange& slice,
                                                                     uint64_t digest) const {
  const auto* held = std::get_if<std::shared_ptr<Sequence>>(&slice.found);
  if (held == nullptr || slice.unreadable) {
    return [](Inspection::Sequence& inspected) {
      inspected.positions.ResizeRecorded(inspected.positions.size());
      return true;
    };
  }
  return RecordsOfSlice{run,
                        slice.name,
                        *held,
                        digest,
                        slice.first_position,
                        std::max(versions_.oldest_fresh, slice.oldest_fetched_version),
                        versions_.policy};
}

void SliceEvaluator::Keep(const Part& part, InspectedPositions& positions) const {
  const size_t begin = part.first - part.slice.first_position;
  if (begin >= positions.size()) return;
  const std::span<const Decision> decisions = part.output.view.decisions;
  std::ranges::copy(decisions.first(std::min(decisions.size(), positions.size() - begin)),
                    positions.decisions.begin() + static_cast<std::ptrdiff_t>(begin));
  for (const Missing& range : part.result.missing) {
    const size_t first = std::min<size_t>(range.first_position - part.slice.first_position,
                                          positions.missing_reasons.size());
    const size_t count = std::min<size_t>(range.count, positions.missing_reasons.size() - first);
    std::ranges::fill(std::span(positions.missing_reasons).subspan(first, count),
                      static_cast<uint8_t>(range.reason));
  }
  for (const BackendRange& range : ranges_) {
    KeepRange(range, range.first_position - part.slice.first_position, positions);
  }
}

void SliceEvaluator::KeepRange(const BackendRange& range, size_t row,
                               InspectedPositions& positions) const {
  if (row >= positions.size()) return;
  const size_t count = std::min(range.output.decisions.size(), positions.size() - row);
  const auto keep = [&](std::span<const float> from, std::vector<float>& to) {
    std::ranges::copy(from.first(count), to.begin() + static_cast<std::ptrdiff_t>(row));
  };
  keep(range.output.acceptance_probabilities, positions.acceptance_probabilities);
  keep(range.output.log_envelopes, positions.log_envelopes);
  keep(range.output.covered_masses, positions.covered_masses);
  keep(range.behavior.sampled_log_probs, positions.sampled_log_probs);
  for (size_t i = 0; i < count; ++i) {
    positions.log_ratios[row + i] =
        Flush(range.current.sampled_log_probs[i] - range.behavior.sampled_log_probs[i]);
  }
  const CurrentView& current = range.current;
  if (current.reduced()) return;
  const float* from = current.log_probs.data();
  for (size_t i = 0; i < count; ++i) {
    const size_t used = range.behavior.counts[i];
    std::copy_n(from, used, positions.current_log_probs.data() + (row + i) * positions.slots);
    from += used;
  }
}

}  // namespace sis
