#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "client/compare/checks.h"
#include "client/compare/moments.h"
#include "client/compare/temperature_fit.h"

namespace sis {
namespace {

struct Difference {
  double seen = std::nan("");  // NaN if there are too few of either
  double weight = 0;           // times a constant squared: what it would explain of the squares
  double squares = 0;          // of all tokens' differences, less their mean
};

// At one position, how much higher B is than A on tokens that the text has, beyond what it is on
// others.
Difference DifferenceAt(const ComparedPosition& position, double slope,
                        const absl::flat_hash_set<int32_t>& seen,
                        const absl::flat_hash_set<int32_t>& biased) {
  const CentredLogProbs centred = Centred(*position.a, *position.b);
  double seen_sum = 0, other_sum = 0, seen_count = 0, other_count = 0, squares = 0;
  for (size_t i = 0; i < centred.ids.size(); ++i) {
    if (biased.contains(centred.ids[i])) continue;
    const double difference = centred.b[i] - slope * centred.a[i];
    const bool is_seen = seen.contains(centred.ids[i]);
    (is_seen ? seen_sum : other_sum) += difference;
    ++(is_seen ? seen_count : other_count);
    squares += difference * difference;
  }
  if (seen_count < 1 || other_count < 2) return {};
  const double count = seen_count + other_count, sum = seen_sum + other_sum;
  return {.seen = seen_sum / seen_count - other_sum / other_count,
          .weight = seen_count * other_count / count,
          .squares = squares - sum * sum / count};
}

}  // namespace

Check CheckPenalty(const Part& part, const absl::flat_hash_set<int32_t>& biased) {
  constexpr size_t kEnough = 20;
  Check check{.name = "penalty",
              .question = "Are repetitions punished on one side only?",
              .statistic =
                  "how far tokens that the text has already are moved against others, in "
                  "nats, less four standard errors",
              .limit = 0.1,
              .reason = "numerical noise gives less than 0, a presence penalty of 0.4 0.3",
              .setting =
                  "repetition, presence and frequency penalties: 0 (1 for repetition), or the same "
                  "in the trainer"};
  const double slope = FitTemperature(part.positions).slope;
  Moments differences;
  double weight = 0, all_squares = 0;
  absl::flat_hash_set<int32_t> seen;
  for (const ComparedPosition& position : part.positions) {
    if (position.position == 0) seen.clear();
    const Difference difference = DifferenceAt(position, slope, seen, biased);
    if (!std::isnan(difference.seen)) {
      differences.Add(difference.seen);
      weight += difference.weight;
      all_squares += difference.squares;
    }
    seen.insert(position.a->sampled_id);
  }
  if (differences.count < kEnough) {
    return check.Untested("too few positions list tokens that the text has already");
  }
  const double mean = differences.mean();
  // A penalty moves them alike; other weights or another context now here, now there.
  const bool alike = mean * mean * weight >= 0.15 * all_squares;
  return check.Decide(
      alike ? std::abs(mean) - 4 * differences.standard_error() : 0,
      absl::StrFormat("The log-probs are of different kinds: %s gives tokens that the "
                      "text has already %.2f nats less than %s does. A repetition, "
                      "presence or frequency penalty is applied on one side only.",
                      mean < 0 ? "B" : "A", std::abs(mean), mean < 0 ? "A" : "B"));
}

}  // namespace sis
