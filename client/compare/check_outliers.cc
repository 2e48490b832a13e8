#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/compare/checks.h"

namespace sis {
namespace {

// Root of the mean squared difference of listed log-probs, less their mean; NaN if too few are in
// common. It does not depend on how certain the policy is there, as log w does.
double NoiseAt(const ComparedPosition& position) {
  const CentredLogProbs centred = Centred(*position.a, *position.b);
  if (centred.ids.size() < 3) return std::nan("");
  double squares = 0;
  for (size_t i = 0; i < centred.ids.size(); ++i) {
    const double difference = centred.b[i] - centred.a[i];
    squares += difference * difference;
  }
  return std::sqrt(squares / static_cast<double>(centred.ids.size()));
}

// Ascending.
std::vector<double> NoiseOf(std::span<const ComparedPosition> positions) {
  std::vector<double> noise;
  for (const ComparedPosition& position : positions) {
    const double at = NoiseAt(position);
    if (!std::isnan(at)) noise.push_back(at);
  }
  std::sort(noise.begin(), noise.end());
  return noise;
}

constexpr double kLeast = 0.1;  // nats

}  // namespace

Check CheckUneven(const Part& part) {
  constexpr size_t kEnoughSequences = 4, kEnough = 16;
  Check check{.name = "uneven",
              .question = "Are all sequences apart alike?",
              .statistic =
                  "median difference of listed log-probs in the sequence where it is "
                  "largest, if it is above 0.1 nats, over the median sequence's",
              .limit = 6,
              .reason = "noise is of one size, within a factor of two",
              .setting = "which replica, adapter or version of the weights served these responses"};
  struct Median {
    double value;
    size_t sequence;
  };
  std::vector<Median> medians;
  for (const ComparedSequence& sequence : part.sequences) {
    const std::vector<double> noise = NoiseOf(part.Of(sequence.index));
    if (noise.size() >= kEnough) medians.push_back({noise[noise.size() / 2], sequence.index});
  }
  if (medians.size() < kEnoughSequences) return check.Untested("too few sequences are long enough");
  std::ranges::sort(medians, {}, &Median::value);
  const double middle = medians[medians.size() / 2].value, largest = medians.back().value;
  if (largest < kLeast) return check.Clear();
  check.Decide(middle > 0 ? largest / middle : check.limit,
               absl::StrFormat("Sequences differ unlike others: in %d listed log-probs differ by "
                               "%.2g nats, in most by %.2g. Other weights made, or scored, them.",
                               medians.back().sequence, largest, middle));
  if (check.fault()) {
    const double far = std::max(kLeast, check.limit * middle);
    for (const Median& median : medians) {
      if (median.value >= far) check.sequences.push_back(median.sequence);
    }
    std::sort(check.sequences.begin(), check.sequences.end());
  }
  return check;
}

Check CheckOutliers(const Part& part) {
  constexpr size_t kEnough = 30;
  Check check{.name = "outliers",
              .question = "Are the differences those of all positions, not of a few?",
              .statistic =
                  "differences of listed log-probs at a position, in nats: the root of "
                  "the mean square over the median, if it is above 0.1",
              .limit = 6,
              .reason = "noise everywhere gives below 3, however large",
              .setting =
                  "routed experts: replay the engine's in the trainer; else kernels that "
                  "depend on the batch"};
  const std::vector<double> noise = NoiseOf(part.positions);
  double squares = 0;
  for (const double at : noise) squares += at * at;
  if (noise.size() < kEnough) return check.Untested("too few positions with tokens in common");
  const double median = noise[noise.size() / 2];
  const double root = std::sqrt(squares / static_cast<double>(noise.size()));
  if (root < kLeast) return check.Clear();
  const double far = std::max(kLeast, check.limit * median);
  const auto beyond = noise.end() - std::upper_bound(noise.begin(), noise.end(), far);
  return check.Decide(
      median > 0 ? root / median : check.limit,
      absl::StrFormat("The differences are those of %d of %d positions, with more than "
                      "%.2g nats; half of all have less than %.2g. That is no noise of "
                      "weights or arithmetic, which is everywhere: other experts were "
                      "routed to, or single steps went another way.",
                      beyond, noise.size(), far, median));
}

}  // namespace sis
