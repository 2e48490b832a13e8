#include "client/cli/compare/difference_size.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sis {
namespace {

// What was measured (docs/compare.md): float32 1e-6, bfloat16 0.014 to 0.038, weights of 4 bits
// 0.057 to 0.069. A level ends half-way to the next, on a logarithmic scale.
struct NoiseLevel {
  double end;  // nats per token
  const char* name;
};
constexpr double kBeyondNoise = 0.15;
constexpr std::array<NoiseLevel, 4> kLevels = {{
    {1e-4, "float32 in another order of addition"},
    {0.047, "bfloat16 or float16 in weights or arithmetic"},
    {kBeyondNoise, "4-bit weights"},
    {std::numeric_limits<double>::infinity(), "more than numerical noise"},
}};

const NoiseLevel& LevelOf(double mean) {
  return *std::find_if(kLevels.begin(), kLevels.end(),
                       [&](const NoiseLevel& level) { return mean < level.end; });
}

std::string Meaning(const DifferenceSize& size) {
  if (size.positions == 0) return "No position has a ratio.";
  if (size.mean == 0) return "The log-probs are equal.";
  const NoiseLevel& level = LevelOf(size.mean);
  std::string meaning =
      absl::StrFormat("D is %.2g nats per token, +- %.1g: the size that comes from %s", size.mean,
                      size.standard_error, level.name);
  const NoiseLevel& low = LevelOf(std::max(0.0, size.mean - 2 * size.standard_error));
  const NoiseLevel& high = LevelOf(size.mean + 2 * size.standard_error);
  if (&low != &high) {
    absl::StrAppend(&meaning, " (with ", size.positions,
                    " positions it can't be told from that of ",
                    &low != &level ? low.name : high.name, ")");
  }
  return absl::StrCat(meaning, ".");
}

}  // namespace

DifferenceSize MeasureDifference(const Decisions& decisions) {
  DifferenceSize size;
  double sum = 0, squares = 0;
  for (const auto& sequence : decisions.sequences) {
    for (const DecidedPosition& position : sequence) {
      if (position.decision == Decision::kMissing) continue;
      const double deviation = std::abs(static_cast<double>(position.log_ratio));
      ++size.positions;
      sum += deviation;
      squares += deviation * deviation;
    }
  }
  if (size.positions > 0) {
    const auto count = static_cast<double>(size.positions);
    size.mean = sum / count;
    size.is_noise = size.mean < kBeyondNoise;
    size.standard_error = std::sqrt(std::max(0.0, squares / count - size.mean * size.mean) / count);
  }
  size.meaning = Meaning(size);
  return size;
}

Check CheckWeights(const DifferenceSize& size) {
  constexpr size_t kEnough = 5;
  Check check{.name = "weights",
              .question = "Are the differences small enough for the same weights?",
              .statistic = "D per token in nats, less two standard errors",
              .limit = kBeyondNoise,
              .reason = "twice what 4-bit weights give, the largest numerical noise measured"};
  if (size.positions < kEnough) {
    check.Untested("too few positions have a ratio");
    return check;
  }
  check.Decide(size.mean - 2 * size.standard_error,
               absl::StrFormat("The differences, D = %.2g nats per token, are too large for "
                               "numerical noise: other weights (another version of the policy, "
                               "an adapter left out), or another prompt or chat template.",
                               size.mean));
  return check;
}

}  // namespace sis
