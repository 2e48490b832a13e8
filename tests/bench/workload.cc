#include "tests/bench/workload.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

namespace sis {
namespace {

// A power law with noise over the slots and a tail beyond them; the current policy has moved a
// little.
struct Position {
  std::vector<float> behavior;
  std::vector<float> current;
  float behavior_sampled;
  float current_sampled;
  uint8_t rank;
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
  position.rank = inside ? static_cast<uint8_t>(rank) : kRankOutside;
  position.behavior_sampled = inside ? position.behavior[rank] : -9.0f;
  position.current_sampled = inside ? position.current[rank] : -9.1f;
  return position;
}

// Of a number in (-65536, 0], towards zero.
uint16_t TruncateToFloat16(float x) {
  const float magnitude = std::abs(x);
  if (magnitude < 0x1p-14f) return 0x8000;
  return 0x8000 | static_cast<uint16_t>((std::bit_cast<uint32_t>(magnitude) >> 13) - (112 << 10));
}

size_t ElementBytes(Layout layout) {
  switch (layout) {
    case Layout::kTokenMajorFloat32:
    case Layout::kGroupedFloat32:
      return 4;
    case Layout::kGroupedFloat16:
      return 2;
    case Layout::kReduced:
      return 0;
  }
  return 0;
}

constexpr double kBytesBesidesSlots = 4 + 4 + 1 + 1;  // sampled values, rank, decision

double BytesPerPositionOf(int slots, Layout layout) {
  return layout == Layout::kReduced ? kBytesBesidesSlots + 4 + 4
                                    : kBytesBesidesSlots + 2.0 * ElementBytes(layout) * slots;
}

size_t PositionsIn(int slots, Layout layout, size_t total_bytes) {
  const auto positions = static_cast<size_t>(total_bytes / BytesPerPositionOf(slots, layout));
  return std::max<size_t>(1, positions / Workload::kSequencePositions) *
         Workload::kSequencePositions;
}

void Put(const std::vector<float>& values, Layout layout, size_t position, std::byte* into) {
  const size_t slots = values.size();
  const size_t group = position / kGroupPositions;
  const size_t lane = position % kGroupPositions;
  for (size_t slot = 0; slot < slots; ++slot) {
    const size_t grouped = (group * slots + slot) * kGroupPositions + lane;
    if (layout == Layout::kGroupedFloat16) {
      const uint16_t half = TruncateToFloat16(values[slot]);
      std::memcpy(into + grouped * 2, &half, 2);
    } else {
      const size_t index = layout == Layout::kGroupedFloat32 ? grouped : position * slots + slot;
      std::memcpy(into + index * 4, &values[slot], 4);
    }
  }
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
      behavior_(PositionsIn(slots, layout, total_bytes) * slots * ElementBytes(layout)),
      current_(behavior_.span().size()),
      behavior_sampled_(PositionsIn(slots, layout, total_bytes)),
      current_sampled_(behavior_sampled_.span().size()),
      ranks_(behavior_sampled_.span().size()),
      log_envelopes_(behavior_sampled_.span().size()),
      covered_masses_(behavior_sampled_.span().size()),
      decisions_(behavior_sampled_.span().size()) {
  constexpr size_t kPeriod = 4 * kSequencePositions;  // enough for branches to stay unlearned
  std::mt19937 random(1);
  for (size_t i = 0; i < std::min(kPeriod, positions()); ++i) {
    const Position position = RandomPosition(random, slots);
    if (layout != Layout::kReduced) {
      Put(position.behavior, layout, i, behavior_.span().data());
      Put(position.current, layout, i, current_.span().data());
    }
    behavior_sampled_.span()[i] = position.behavior_sampled;
    current_sampled_.span()[i] = position.current_sampled;
    ranks_.span()[i] = position.rank;
    EnvelopeAccumulator accumulator;
    for (int slot = 0; slot < slots; ++slot) {
      accumulator.Add(position.behavior[slot], position.current[slot]);
    }
    log_envelopes_.span()[i] = accumulator.Finish().log_envelope;
    covered_masses_.span()[i] = accumulator.Finish().covered_mass;
  }
  const size_t row = slots * ElementBytes(layout);
  if (row > 0) {
    Repeat(behavior_.span(), kPeriod * row);
    Repeat(current_.span(), kPeriod * row);
  }
  Repeat(behavior_sampled_.span(), kPeriod);
  Repeat(current_sampled_.span(), kPeriod);
  Repeat(ranks_.span(), kPeriod);
  Repeat(log_envelopes_.span(), kPeriod);
  Repeat(covered_masses_.span(), kPeriod);
  std::ranges::fill(decisions_.span(), Decision::kMissing);

  for (size_t first = 0; first < positions(); first += kSequencePositions) {
    const auto part = [&](const auto& array, size_t width) {
      return array.span().subspan(first * width, kSequencePositions * width);
    };
    Segment segment{.sequence_key = first,
                    .first_position = 0,
                    .behavior = {},
                    .current = {},
                    .output = {.decisions = part(decisions_, 1)},
                    .sums = &sums_};
    segment.behavior.sampled_log_probs = part(behavior_sampled_, 1);
    segment.behavior.sampled_ranks = part(ranks_, 1);
    segment.current.sampled_log_probs = part(current_sampled_, 1);
    const auto floats = [](std::span<std::byte> bytes) {
      return std::span(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float));
    };
    switch (layout) {
      case Layout::kReduced:
        segment.current.log_envelopes = part(log_envelopes_, 1);
        segment.current.covered_masses = part(covered_masses_, 1);
        break;
      case Layout::kTokenMajorFloat32:
        segment.behavior.log_probs = floats(part(behavior_, row));
        segment.current.log_probs = floats(part(current_, row));
        break;
      case Layout::kGroupedFloat32:
      case Layout::kGroupedFloat16: {
        const LogProbEncoding encoding = layout == Layout::kGroupedFloat32
                                             ? LogProbEncoding::kFloat32
                                             : LogProbEncoding::kFloat16;
        segment.behavior.grouped_log_probs = {part(behavior_, row), encoding, 0};
        segment.current.grouped_log_probs = {part(current_, row), encoding, 0};
        break;
      }
    }
    segments_.push_back(segment);
  }
}

double Workload::BytesPerPosition() const { return BytesPerPositionOf(slots_, layout_); }

}  // namespace sis
