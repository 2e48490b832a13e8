// What an evaluation found at single positions, for a closer look: its values are kept when it has
// them, and what is recorded is added when nobody waits any more.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "server/evaluate/slice_evaluator.h"

namespace sis {
namespace {

// The records of one slice, until somebody looks. Doesn't keep the sequence: who has the answer may
// release it.
struct RecordsOfSlice {
  std::weak_ptr<const Sequence> sequence;
  uint32_t first_position;
  uint64_t oldest_fresh_version;
  uint64_t policy_version;

  bool operator()(InspectedPositions& positions) const;
  // False if they are not those that were evaluated.
  bool AddPiece(const Sequence::Reader::Piece& piece, InspectedPositions& positions) const;
};

bool RecordsOfSlice::operator()(InspectedPositions& positions) const {
  positions.ResizeRecorded(positions.size());
  const std::shared_ptr<const Sequence> held = sequence.lock();
  if (held == nullptr) return false;
  bool same = true;
  const Sequence::Reader reader(*held);
  reader.ForEachPiece(
      first_position, static_cast<uint32_t>(positions.size()),
      [&](const Sequence::Reader::Piece& piece) { same = AddPiece(piece, positions) && same; });
  return same;
}

bool RecordsOfSlice::AddPiece(const Sequence::Reader::Piece& piece,
                              InspectedPositions& positions) const {
  const size_t first = piece.first_position - first_position;
  const auto part = [&](auto& array, size_t width) {
    return std::span(array).subspan(first * width, piece.count * width);
  };
  const std::span<const Decision> decisions = part(positions.decisions, 1);
  if (ReasonMissing(piece, oldest_fresh_version).has_value()) {
    return std::ranges::none_of(decisions, IsScored);
  }
  std::vector<float> sampled_log_probs(piece.count);
  std::vector<uint8_t> ranks(piece.count);
  piece.page->Read(piece.index, {.sampled_ids = part(positions.sampled_ids, 1),
                                 .sampled_log_probs = sampled_log_probs,
                                 .ids = part(positions.top_k_ids, positions.slots),
                                 .log_probs = part(positions.top_k_log_probs, positions.slots),
                                 .ranks = ranks});
  const std::span<float> evaluated = part(positions.sampled_log_probs, 1);
  for (size_t i = 0; i < piece.count; ++i) {
    if (!IsScored(decisions[i])) continue;
    if (std::memcmp(&evaluated[i], &sampled_log_probs[i], sizeof(float)) != 0) return false;
  }
  std::ranges::copy(sampled_log_probs, evaluated.begin());
  const std::span<float> log_probs = part(positions.top_k_log_probs, positions.slots);
  const std::span<float> current = part(positions.current_log_probs, positions.slots);
  for (size_t i = 0; i < log_probs.size(); ++i) {
    if (log_probs[i] == kMinusInfinity) current[i] = std::numeric_limits<float>::quiet_NaN();
  }
  std::ranges::fill(part(positions.staleness, 1),
                    policy_version - std::min(policy_version, piece.version));
  return true;
}

}  // namespace

std::function<bool(InspectedPositions&)> SliceEvaluator::RecordsOf(const SliceRange& slice) const {
  const auto* held = std::get_if<std::shared_ptr<Sequence>>(&slice.found);
  if (held == nullptr || slice.unreadable) {
    return [](InspectedPositions& positions) {
      positions.ResizeRecorded(positions.size());
      return true;
    };
  }
  return RecordsOfSlice{*held, slice.first_position,
                        std::max(versions_.oldest_fresh, slice.oldest_fetched_version),
                        versions_.policy};
}

void SliceEvaluator::Keep(const Part& part, InspectedPositions& positions) const {
  const size_t begin = part.first - part.slice.first_position;
  if (begin >= positions.size()) return;
  const std::span<const Decision> decisions = part.output.view.decisions;
  std::ranges::copy(decisions.first(std::min(decisions.size(), positions.size() - begin)),
                    positions.decisions.begin() + static_cast<std::ptrdiff_t>(begin));
  for (const Stretch& stretch : stretches_) {
    KeepStretch(stretch, stretch.first_position - part.slice.first_position, positions);
  }
}

void SliceEvaluator::KeepStretch(const Stretch& stretch, size_t row,
                                 InspectedPositions& positions) const {
  if (row >= positions.size()) return;
  const size_t count = std::min(stretch.output.decisions.size(), positions.size() - row);
  const auto keep = [&](std::span<const float> from, std::vector<float>& to) {
    std::ranges::copy(from.first(count), to.begin() + static_cast<std::ptrdiff_t>(row));
  };
  keep(stretch.output.acceptance_probabilities, positions.acceptance_probabilities);
  keep(stretch.output.log_envelopes, positions.log_envelopes);
  keep(stretch.output.covered_masses, positions.covered_masses);
  keep(stretch.behavior.sampled_log_probs, positions.sampled_log_probs);
  for (size_t i = 0; i < count; ++i) {
    positions.log_ratios[row + i] =
        Flush(stretch.current.sampled_log_probs[i] - stretch.behavior.sampled_log_probs[i]);
  }
  const CurrentView& current = stretch.current;
  if (current.reduced()) return;
  const size_t slots = positions.slots;
  float* to = positions.current_log_probs.data() + row * slots;
  if (!current.log_probs.empty()) {
    std::ranges::copy(current.log_probs.first(count * slots), to);
    return;
  }
  const CurrentReader reader(current, slots);
  for (size_t i = 0; i < count * slots; ++i) to[i] = reader.At(i / slots, i % slots);
}

}  // namespace sis
