#include "client/compare/compared_positions.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>

namespace sis {
namespace {

void Centre(std::vector<double>& values) {
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) /
                      static_cast<double>(std::max<size_t>(1, values.size()));
  for (double& value : values) value -= mean;
}

}  // namespace

double ComparedPosition::deviation() const {
  return std::min(64.0, std::abs(static_cast<double>(decided->log_ratio)));
}

std::span<const ComparedPosition> Part::Of(size_t index) const {
  const auto begin = std::ranges::lower_bound(positions, index, {}, &ComparedPosition::sequence);
  return {begin,
          std::ranges::upper_bound(begin, positions.end(), index, {}, &ComparedPosition::sequence)};
}

Part Part::Only(std::span<const size_t> indices) const {
  Part part;
  for (const size_t index : indices) {
    part.sequences.push_back(
        *std::ranges::lower_bound(sequences, index, {}, &ComparedSequence::index));
    std::ranges::copy(Of(index), std::back_inserter(part.positions));
  }
  return part;
}

Part WholeOf(const RecordedPair& pair, const Decisions& decisions) {
  Part whole;
  for (size_t i = 0; i < pair.a.sequences.size(); ++i) {
    const RecordedSets &a = pair.a.sequences[i], &b = pair.b.sequences[i];
    whole.sequences.push_back({i, &a, &b});
    for (uint32_t t = 0; t < decisions.sequences[i].size(); ++t) {
      whole.positions.push_back(
          {i, t, &a[t], &b[t], &decisions.sequences[i][t], TotalVariation(a[t], b[t])});
    }
  }
  return whole;
}

size_t EqualTokens(const RecordedSets& a, const RecordedSets& b, int shift) {
  const size_t skip_a = std::max(0, -shift), skip_b = std::max(0, shift);
  size_t equal = 0;
  while (skip_a + equal < a.size() && skip_b + equal < b.size() &&
         a[skip_a + equal].sampled_id == b[skip_b + equal].sampled_id) {
    ++equal;
  }
  return equal;
}

bool AreGathered(std::span<const ComparedPosition> positions) {
  const auto lists = [](const ComparedPosition& at) { return !at.b->top.empty(); };
  return std::ranges::any_of(positions, lists) &&
         std::ranges::all_of(positions, [&](const ComparedPosition& at) {
           return std::ranges::includes(at.a->by_id, at.b->by_id, {}, &ListedToken::id,
                                        &ListedToken::id);
         });
}

double MassOf(const RecordedSet& set) {
  double mass = 0;
  for (const ListedToken& token : set.top) mass += std::exp(token.log_prob);
  return mass;
}

double TotalVariation(const RecordedSet& a, const RecordedSet& b) {
  double sum = 0;
  for (const ListedToken& token : a.top) {
    const std::optional<float> other = b.Listed(token.id);
    sum += std::abs(std::exp(token.log_prob) - (other ? std::exp(*other) : 0.0));
  }
  for (const ListedToken& token : b.top) {
    if (!a.Listed(token.id)) sum += std::exp(token.log_prob);
  }
  return sum / 2;
}

CentredLogProbs Centred(const RecordedSet& a, const RecordedSet& b) {
  CentredLogProbs centred;
  for (const ListedToken& token : a.top) {
    if (const std::optional<float> other = b.Listed(token.id)) {
      centred.ids.push_back(token.id);
      centred.a.push_back(token.log_prob);
      centred.b.push_back(*other);
    }
  }
  Centre(centred.a);
  Centre(centred.b);
  return centred;
}

}  // namespace sis
