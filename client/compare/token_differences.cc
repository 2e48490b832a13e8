#include "client/compare/token_differences.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_set.h"

namespace sis {
namespace {

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Nats by which a token must lie above the least of the list that leaves it out.
constexpr double kSurelyMissed = 0.3;

void AddPosition(const RecordedSet& a, const RecordedSet& b, double slope,
                 const absl::flat_hash_set<int32_t>& seen,
                 std::vector<TokenDifference>& differences) {
  std::vector<double> common;
  for (const ListedToken& token : a.top) {
    if (const auto other = b.Listed(token.id)) common.push_back(*other - slope * token.log_prob);
  }
  if (common.size() < 3) return;
  const double median = Median(common);
  const auto add = [&](int32_t id, double difference) {
    differences.push_back({id, seen.contains(id), difference - median});
  };
  const double least_a = a.top.back().log_prob, least_b = b.top.back().log_prob;
  for (const ListedToken& token : a.top) {
    const double expected = slope * token.log_prob + median;
    if (const auto other = b.Listed(token.id)) {
      add(token.id, *other - slope * token.log_prob);
    } else if (expected > least_b + kSurelyMissed) {
      add(token.id, least_b - slope * token.log_prob);
    }
  }
  for (const ListedToken& token : b.top) {
    const bool surely = token.log_prob - median > slope * least_a + kSurelyMissed;
    if (!a.Listed(token.id) && surely) add(token.id, token.log_prob - slope * least_a);
  }
}

}  // namespace

std::vector<TokenDifference> TokenDifferences(std::span<const ComparedPosition> positions,
                                              double slope) {
  std::vector<TokenDifference> differences;
  absl::flat_hash_set<int32_t> seen;
  for (const ComparedPosition& position : positions) {
    if (position.position == 0) seen.clear();
    AddPosition(*position.a, *position.b, slope, seen, differences);
    seen.insert(position.a->sampled_id);
  }
  return differences;
}

}  // namespace sis
