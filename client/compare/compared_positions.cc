#include "client/compare/compared_positions.h"

#include <algorithm>
#include <cmath>
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

size_t CommonPrefix(const RecordedSets& a, const RecordedSets& b) {
  const size_t shorter = std::min(a.size(), b.size());
  for (size_t i = 0; i < shorter; ++i) {
    if (a[i].sampled_id != b[i].sampled_id) return i + 1;
  }
  return shorter;
}

std::vector<ComparedPosition> ComparedPositions(const RecordedPair& pair) {
  std::vector<ComparedPosition> positions;
  for (size_t i = 0; i < pair.a.sequences.size(); ++i) {
    const RecordedSets& a = pair.a.sequences[i];
    const RecordedSets& b = pair.b.sequences[i];
    const size_t prefix = CommonPrefix(a, b);
    for (size_t t = 0; t < prefix; ++t) {
      positions.push_back({i, static_cast<uint32_t>(t), &a[t], &b[t]});
    }
  }
  return positions;
}

bool AreGathered(std::span<const ComparedPosition> positions) {
  const auto by_id = [](const ListedToken& a, const ListedToken& b) { return a.id < b.id; };
  const bool any = std::any_of(positions.begin(), positions.end(),
                               [](const ComparedPosition& at) { return !at.b->top.empty(); });
  return any && std::all_of(positions.begin(), positions.end(), [&](const ComparedPosition& at) {
           return std::includes(at.a->by_id.begin(), at.a->by_id.end(), at.b->by_id.begin(),
                                at.b->by_id.end(), by_id);
         });
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
