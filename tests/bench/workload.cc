#include "tests/bench/workload.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "kernels/block/pack.h"

namespace sis {
namespace {

// A power law with noise over the slots and a tail beyond them; the current policy has moved a
// little.
struct Position {
  std::vector<float> behavior;
  std::vector<float> current;
  float behavior_sampled;
  float current_sampled;
  uint16_t rank;
};

Position RandomPosition(std::mt19937& random, int slots) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform;
  Position position;
  const float steepness = 0.5f + 3.0f * uniform(random);
  float total = 0.0f;
  for (int slot = 0; slot < slots; ++slot) {
    position.behavior.push_back(-steepness * std::log(slot + 1.0f) -
                                0.01f * slot * uniform(random));
  }
  std::sort(position.behavior.begin(), position.behavior.end(), std::greater<>());
  for (const float logit : position.behavior) total += std::exp(logit);
  const float log_total = std::log(total) + 0.1f * uniform(random);
  for (float& log_prob : position.behavior) {
    log_prob -= log_total;
    position.current.push_back(std::min(0.0f, log_prob - 0.02f + 0.1f * normal(random)));
  }
  float u = uniform(random);
  size_t rank = 0;
  while (rank < position.behavior.size() && (u -= std::exp(position.behavior[rank])) > 0) ++rank;
  const bool inside = rank < position.behavior.size();
  position.rank = inside ? static_cast<uint16_t>(rank) : 0xffff;
  position.behavior_sampled = inside ? position.behavior[rank] : -9.0f;
  position.current_sampled = inside ? position.current[rank] : -9.1f;
  return position;
}

constexpr size_t kPositions = Workload::kSequencePositions;

PackOptions OptionsOf(int slots, Layout layout) {
  return {
      .encoding = layout == Layout::kFloat32 ? BlockEncoding::kFloat32 : BlockEncoding::kFixed16,
      .slots = slots,
      .vocabulary_size = 1 << 16};
}

// Returns the layout of a block whose slots are all used.
BlockLayout LayoutOf(int slots, Layout layout) {
  BlockHeader header = {};
  header.encoding = OptionsOf(slots, layout).encoding;
  header.id_bytes = 2;
  header.positions = kPositions;
  header.used_slots = static_cast<uint32_t>(kPositions * slots);
  return BlockLayout(header);
}

double BytesPerPositionOf(int slots, Layout layout) {
  constexpr double kSampledValueAndDecision = 4 + 1;
  constexpr double kReducedValues = 4 + 4;
  if (layout == Layout::kReduced) return kSampledValueAndDecision + kReducedValues + 4 + 1;
  const BlockLayout at = LayoutOf(slots, layout);
  return static_cast<double>(at.sampled_ids - at.log_probs) / kPositions + 4.0 * slots +
         kSampledValueAndDecision;
}

}  // namespace

Workload::Workload(int slots, Layout layout, size_t total_bytes)
    : block_stride_((LayoutOf(slots, layout).end + kBlockSlack + 63) / 64 * 64),
      sequences_(std::max<size_t>(
          1, static_cast<size_t>(total_bytes / BytesPerPositionOf(slots, layout)) / kPositions)),
      bytes_per_position_(BytesPerPositionOf(slots, layout)),
      blocks_(sequences_ * block_stride_),
      log_probs_(layout == Layout::kReduced ? 0 : sequences_ * kPositions * slots),
      sampled_log_probs_(sequences_ * kPositions),
      log_envelopes_(layout == Layout::kReduced ? sequences_ * kPositions : 0),
      covered_masses_(log_envelopes_.span().size()),
      decisions_(sequences_ * kPositions) {
  constexpr size_t kDistinct = 32;  // sequences: enough for branches to stay unlearned
  std::mt19937 random(1);
  std::vector<int32_t> ids;
  for (size_t slot = 0; slot < kPositions * slots; ++slot) {
    ids.push_back(static_cast<int32_t>(slot % slots));  // an id is its rank
  }
  const auto part = [](const auto& array, size_t sequence, size_t width) {
    return array.span().empty() ? array.span() : array.span().subspan(sequence * width, width);
  };
  for (size_t sequence = 0; sequence < sequences_; ++sequence) {
    const auto block = part(blocks_, sequence, block_stride_);
    const auto log_probs = part(log_probs_, sequence, kPositions * slots);
    const auto sampled = part(sampled_log_probs_, sequence, kPositions);
    const auto envelopes = part(log_envelopes_, sequence, kPositions);
    const auto masses = part(covered_masses_, sequence, kPositions);
    if (sequence >= kDistinct) {
      const size_t same = sequence % kDistinct;
      std::ranges::copy(part(blocks_, same, block_stride_), block.begin());
      std::ranges::copy(part(log_probs_, same, kPositions * slots), log_probs.begin());
      std::ranges::copy(part(sampled_log_probs_, same, kPositions), sampled.begin());
      std::ranges::copy(part(log_envelopes_, same, kPositions), envelopes.begin());
      std::ranges::copy(part(covered_masses_, same, kPositions), masses.begin());
    } else {
      std::vector<int32_t> sampled_ids;
      std::vector<float> behavior, behavior_sampled;
      for (size_t i = 0; i < kPositions; ++i) {
        const Position position = RandomPosition(random, slots);
        behavior.insert(behavior.end(), position.behavior.begin(), position.behavior.end());
        behavior_sampled.push_back(position.behavior_sampled);
        sampled_ids.push_back(position.rank);
        sampled[i] = position.current_sampled;
        if (layout != Layout::kReduced) {
          std::ranges::copy(position.current, log_probs.begin() + i * slots);
          continue;
        }
        EnvelopeAccumulator accumulator;
        for (int slot = 0; slot < slots; ++slot) {
          accumulator.Add(position.behavior[slot], position.current[slot]);
        }
        envelopes[i] = accumulator.Finish().log_envelope;
        masses[i] = accumulator.Finish().covered_mass;
      }
      std::ranges::copy(*PackBlock({.sampled_ids = sampled_ids,
                                    .sampled_log_probs = behavior_sampled,
                                    .ids = ids,
                                    .log_probs = behavior},
                                   OptionsOf(slots, layout)),
                        block.begin());
    }
    const auto decisions = part(decisions_, sequence, kPositions);
    std::ranges::fill(decisions, Decision::kMissing);
    const BlockView view = *OpenBlock(block.first(LayoutOf(slots, layout).end), false);
    ranges_.push_back({.sequence_key = sequence,
                       .first_position = 0,
                       .behavior = BlockRange(view, 0, kPositions),
                       .current = {.sampled_log_probs = sampled,
                                   .log_probs = log_probs,
                                   .log_envelopes = envelopes,
                                   .covered_masses = masses},
                       .output = {.decisions = decisions},
                       .sums = &sums_});
  }
}

}  // namespace sis
