#include "server/cache/inspected_positions.h"

#include <algorithm>

namespace sis {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Allocates exactly `count` elements, because a larger capacity would not be charged.
template <typename T>
void Grow(std::vector<T>& array, size_t count, T value) {
  array.reserve(count);
  array.resize(count, value);
}

template <typename T>
void CopyRows(std::vector<T>& to, size_t first, const std::vector<T>& from, size_t begin,
              size_t count, size_t width) {
  std::copy_n(from.begin() + begin * width, count * width, to.begin() + first * width);
}

}  // namespace

void InspectedPositions::Resize(size_t count) {
  Grow(decisions, count, kNotEvaluated);
  Grow(missing_reasons, count, uint8_t{0});
  Grow(sampled_log_probs, count, kNaN);
  Grow(log_ratios, count, kNaN);
  Grow(acceptance_probabilities, count, 0.0f);
  Grow(log_envelopes, count, kNaN);
  Grow(covered_masses, count, kNaN);
  Grow(current_log_probs, count * slots, kNaN);
  Grow(sampled_ids, count, int32_t{-1});
  Grow(staleness, count, int64_t{0});
  Grow(top_k_ids, count * slots, int32_t{-1});
  Grow(top_k_log_probs, count * slots, kMinusInfinity);
}

void InspectedPositions::Copy(size_t to, const InspectedPositions& other, size_t from,
                              size_t count) {
  const auto copy = [&](auto member, size_t width) {
    CopyRows(this->*member, to, other.*member, from, count, width);
  };
  copy(&InspectedPositions::decisions, 1);
  copy(&InspectedPositions::missing_reasons, 1);
  copy(&InspectedPositions::sampled_ids, 1);
  copy(&InspectedPositions::sampled_log_probs, 1);
  copy(&InspectedPositions::log_ratios, 1);
  copy(&InspectedPositions::acceptance_probabilities, 1);
  copy(&InspectedPositions::log_envelopes, 1);
  copy(&InspectedPositions::covered_masses, 1);
  copy(&InspectedPositions::staleness, 1);
  copy(&InspectedPositions::top_k_ids, slots);
  copy(&InspectedPositions::top_k_log_probs, slots);
  copy(&InspectedPositions::current_log_probs, slots);
}

Sums InspectedPositions::Total() const {
  Sums sums;
  for (size_t i = 0; i < size(); ++i) {
    sums.missing += decisions[i] == Decision::kMissing;
    sums.masked += decisions[i] == Decision::kMasked;
    if (!IsScored(decisions[i])) continue;
    const bool in_top_k = decisions[i] != Decision::kOutsideTopK;
    const PositionResult result{decisions[i], in_top_k && log_ratios[i] > log_envelopes[i],
                                acceptance_probabilities[i], log_ratios[i]};
    AddPosition(result, {log_envelopes[i], covered_masses[i]}, sums);
  }
  return sums;
}

}  // namespace sis
