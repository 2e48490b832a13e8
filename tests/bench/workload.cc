#include "tests/bench/workload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "kernels/records/log_probs.h"

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
  position.rank = inside ? static_cast<uint16_t>(rank) : kRankOutside;
  position.behavior_sampled = inside ? position.behavior[rank] : -9.0f;
  position.current_sampled = inside ? position.current[rank] : -9.1f;
  return position;
}

// How one policy's values lie: in groups, or token after token in float32.
struct SlotLayout {
  bool grouped;
  LogProbEncoding encoding = LogProbEncoding::kFloat32;

  // Of a multiple of 16 positions.
  size_t Bytes(size_t positions, size_t slots) const {
    if (grouped) return LogProbBytes(encoding, positions, slots);
    return positions * slots * RowBytes(encoding) / kGroupPositions;
  }
};

SlotLayout BehaviorLayout(Layout layout) {
  switch (layout) {
    case Layout::kFloat16AndTokenMajor:
      return {true, LogProbEncoding::kFloat16};
    case Layout::kFixed12AndTokenMajor:
      return {true, LogProbEncoding::kFixed12};
    case Layout::kTokenMajorFloat32:
    case Layout::kReduced:
      break;
  }
  return {false};
}

constexpr SlotLayout kCurrentLayout = {false};

// Of n positions, both policies.
size_t SlotBytes(size_t positions, int slots, Layout layout) {
  if (layout == Layout::kReduced) return 0;
  return BehaviorLayout(layout).Bytes(positions, slots) + kCurrentLayout.Bytes(positions, slots);
}

constexpr double kBytesBesidesSlots = 4 + 4 + 1 + 1;  // sampled values, rank, decision

double BytesPerPositionOf(int slots, Layout layout) {
  const double own = layout == Layout::kReduced ? 4 + 4 : 0;
  return kBytesBesidesSlots + own +
         static_cast<double>(SlotBytes(kGroupPositions, slots, layout)) / kGroupPositions;
}

size_t PositionsIn(int slots, Layout layout, size_t total_bytes) {
  const auto positions = static_cast<size_t>(total_bytes / BytesPerPositionOf(slots, layout));
  return std::max<size_t>(1, positions / Workload::kSequencePositions) *
         Workload::kSequencePositions;
}

// Of one policy, in a workload of about total_bytes.
size_t SlotBytesOf(SlotLayout one, int slots, Layout layout, size_t total_bytes) {
  if (layout == Layout::kReduced) return 0;
  return one.Bytes(PositionsIn(slots, layout, total_bytes), slots);
}

// Token-major values [n, K] into the first bytes of `into`.
void Put(const std::vector<float>& values, int slots, SlotLayout layout,
         std::span<std::byte> into) {
  const size_t n = values.size() / slots;
  const std::span<std::byte> bytes = into.first(layout.Bytes(n, slots));
  if (!layout.grouped) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return;
  }
  std::vector<uint16_t> used(n);
  EncodeBehaviorLogProbs(layout.encoding, values, slots, used, bytes);
}

template <typename T>
void Repeat(std::span<T> values, size_t period) {
  for (size_t i = period; i < values.size(); i += period) {
    const size_t count = std::min(period, values.size() - i);
    std::memcpy(values.data() + i, values.data(), count * sizeof(T));
  }
}

}  // namespace

Workload::Workload(int slots, Layout layout, size_t total_bytes)
    : slots_(slots),
      layout_(layout),
      behavior_(SlotBytesOf(BehaviorLayout(layout), slots, layout, total_bytes)),
      current_(SlotBytesOf(kCurrentLayout, slots, layout, total_bytes)),
      behavior_sampled_(PositionsIn(slots, layout, total_bytes)),
      current_sampled_(behavior_sampled_.span().size()),
      ranks_(behavior_sampled_.span().size()),
      log_envelopes_(behavior_sampled_.span().size()),
      covered_masses_(behavior_sampled_.span().size()),
      decisions_(behavior_sampled_.span().size()) {
  constexpr size_t kPeriod = 4 * kSequencePositions;  // enough for branches to stay unlearned
  std::mt19937 random(1);
  std::vector<float> behavior;
  std::vector<float> current;
  for (size_t i = 0; i < std::min(kPeriod, positions()); ++i) {
    const Position position = RandomPosition(random, slots);
    behavior.insert(behavior.end(), position.behavior.begin(), position.behavior.end());
    current.insert(current.end(), position.current.begin(), position.current.end());
    behavior_sampled_.span()[i] = position.behavior_sampled;
    current_sampled_.span()[i] = position.current_sampled;
    ranks_.span()[i] = static_cast<uint8_t>(position.rank);
    EnvelopeAccumulator accumulator;
    for (int slot = 0; slot < slots; ++slot) {
      accumulator.Add(position.behavior[slot], position.current[slot]);
    }
    log_envelopes_.span()[i] = accumulator.Finish().log_envelope;
    covered_masses_.span()[i] = accumulator.Finish().covered_mass;
  }
  const SlotLayout behavior_layout = BehaviorLayout(layout);
  if (layout != Layout::kReduced) {
    Put(behavior, slots, behavior_layout, behavior_.span());
    Put(current, slots, kCurrentLayout, current_.span());
    Repeat(behavior_.span(), behavior_layout.Bytes(kPeriod, slots));
    Repeat(current_.span(), kCurrentLayout.Bytes(kPeriod, slots));
  }
  Repeat(behavior_sampled_.span(), kPeriod);
  Repeat(current_sampled_.span(), kPeriod);
  Repeat(ranks_.span(), kPeriod);
  Repeat(log_envelopes_.span(), kPeriod);
  Repeat(covered_masses_.span(), kPeriod);
  std::ranges::fill(decisions_.span(), Decision::kMissing);

  for (size_t first = 0; first < positions(); first += kSequencePositions) {
    const auto part = [&](const auto& array) {
      return array.span().subspan(first, kSequencePositions);
    };
    Stretch stretch{.sequence_key = first,
                    .first_position = 0,
                    .behavior = {},
                    .current = {},
                    .output = {.decisions = part(decisions_)},
                    .sums = &sums_};
    stretch.behavior.sampled_log_probs = part(behavior_sampled_);
    stretch.behavior.sampled_ranks = {part(ranks_).data(), kSequencePositions};
    stretch.current.sampled_log_probs = part(current_sampled_);
    const auto slots_of = [&](const auto& array, SlotLayout of, auto& view) {
      const size_t bytes = of.Bytes(kSequencePositions, slots);
      const std::span<std::byte> rows =
          array.span().subspan(first / kSequencePositions * bytes, bytes);
      if constexpr (requires { view.grouped_log_probs; }) {
        if (of.grouped) {
          view.grouped_log_probs = {rows, of.encoding, 0};
          return;
        }
      }
      view.log_probs = {reinterpret_cast<const float*>(rows.data()), bytes / sizeof(float)};
    };
    if (layout == Layout::kReduced) {
      stretch.current.log_envelopes = part(log_envelopes_);
      stretch.current.covered_masses = part(covered_masses_);
    } else {
      slots_of(behavior_, behavior_layout, stretch.behavior);
      slots_of(current_, kCurrentLayout, stretch.current);
    }
    stretches_.push_back(stretch);
  }
}

double Workload::BytesPerPosition() const { return BytesPerPositionOf(slots_, layout_); }

}  // namespace sis
