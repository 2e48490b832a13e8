#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "client/cli/compare/checks.h"
#include "client/cli/compare/temperature_fit.h"

namespace sis {
namespace {

// At one position, how much higher B is than A on tokens that the text has, beyond what it is on
// others; NaN if there are too few of either.
double Difference(const ComparedPosition& position, double slope,
                  const absl::flat_hash_set<int32_t>& seen) {
  const CentredLogProbs centred = Centred(*position.a, *position.b);
  double seen_sum = 0, other_sum = 0;
  size_t seen_count = 0, other_count = 0;
  for (size_t i = 0; i < centred.ids.size(); ++i) {
    const double difference = centred.b[i] - slope * centred.a[i];
    const bool is_seen = seen.contains(centred.ids[i]);
    (is_seen ? seen_sum : other_sum) += difference;
    ++(is_seen ? seen_count : other_count);
  }
  if (seen_count < 1 || other_count < 2) return std::nan("");
  return seen_sum / static_cast<double>(seen_count) - other_sum / static_cast<double>(other_count);
}

}  // namespace

Check CheckPenalty(const RecordedPair& pair, std::span<const ComparedPosition> positions) {
  constexpr size_t kEnough = 20;
  Check check{.name = "penalty",
              .question = "Are repetitions punished on one side only?",
              .statistic =
                  "how far tokens that the text has already are moved against others, in "
                  "nats, less four standard errors",
              .limit = 0.1,
              .reason = "numerical noise gives less than 0, a presence penalty of 0.4 0.3"};
  const double slope = FitTemperature(positions).slope;
  std::vector<double> differences;
  absl::flat_hash_set<int32_t> seen;
  for (const ComparedPosition& position : positions) {
    if (position.position == 0) seen.clear();
    const double difference = Difference(position, slope, seen);
    if (!std::isnan(difference)) differences.push_back(difference);
    seen.insert(pair.a.sequences[position.sequence][position.position].sampled_id);
  }
  const auto count = static_cast<double>(differences.size());
  if (differences.size() < kEnough) {
    check.Untested("too few positions list tokens that the text has already");
    return check;
  }
  double sum = 0, squares = 0;
  for (const double difference : differences) {
    sum += difference;
    squares += difference * difference;
  }
  const double mean = sum / count;
  const double error = std::sqrt(std::max(0.0, squares / count - mean * mean) / count);
  check.Decide(std::abs(mean) - 4 * error,
               absl::StrFormat("The log-probs are of different kinds: %s gives tokens that the "
                               "text has already %.2f nats less than %s does. A repetition, "
                               "presence or frequency penalty is applied on one side only.",
                               mean < 0 ? "B" : "A", std::abs(mean), mean < 0 ? "A" : "B"));
  return check;
}

}  // namespace sis
