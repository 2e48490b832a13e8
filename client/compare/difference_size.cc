#include "client/compare/difference_size.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/compare/checks.h"
#include "client/compare/profile.h"

namespace sis {
namespace {

// What was measured (docs/compare.md): float32 1e-6, bfloat16 0.014 to 0.038, weights of 4 bits
// 0.057 to 0.069. A level ends half-way to the next, on a logarithmic scale.
struct NoiseLevel {
  double end;  // nats per token
  const char* level;
  const char* name;
};
constexpr double kBeyondNoise = 0.15;
constexpr std::array<NoiseLevel, 4> kLevels = {{
    {1e-4, "float32", "float32 in another order of addition"},
    {0.047, "bfloat16", "bfloat16 or float16 in weights or arithmetic"},
    {kBeyondNoise, "4_bit", "4-bit weights"},
    {std::numeric_limits<double>::infinity(), "beyond_noise", "more than numerical noise"},
}};

const NoiseLevel& LevelOf(double mean) {
  const auto found = std::find_if(kLevels.begin(), kLevels.end(),
                                  [&](const NoiseLevel& level) { return mean < level.end; });
  return found == kLevels.end() ? kLevels.back() : *found;
}

std::string Meaning(const DifferenceSize& size) {
  if (size.positions == 0) return "No position has a ratio.";
  if (size.mean == 0 && !(size.lists >= kBeyondNoise)) return "The log-probs are equal.";
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
  if (size.lists >= kBeyondNoise) {
    absl::StrAppendFormat(&meaning, "; but the lists differ by %.2g (total variation)", size.lists);
  }
  return absl::StrCat(meaning, ".");
}

}  // namespace

DifferenceSize MeasureDifference(const Part& part) {
  const DifferenceSums all = DifferencesOf(part.positions);
  DifferenceSize size;
  size.positions = all.d.count;
  size.lists = all.lists.mean();
  if (size.positions > 0) {
    size.mean = all.d.mean();
    size.standard_error = all.d.standard_error();
  }
  size.is_noise = size.positions > 0 && size.mean < kBeyondNoise && !(size.lists >= kBeyondNoise);
  size.meaning = Meaning(size);
  size.level = size.positions == 0 ? "" : size.mean == 0 ? "equal" : LevelOf(size.mean).level;
  return size;
}

Check CheckWeights(const Part& part) {
  constexpr size_t kEnough = 5;
  Check check{.name = "weights",
              .question = "Are the differences small enough for the same weights?",
              .statistic = "D per token in nats, less two standard errors",
              .limit = kBeyondNoise,
              .reason = "twice what 4-bit weights give, the largest numerical noise measured",
              .setting =
                  "the checkpoint and adapters that both sides have loaded, whether the "
                  "engine's weights are updated, the chat template"};
  const Moments d = DifferencesOf(part.positions).d;
  if (d.count < kEnough) return check.Untested("too few positions have a ratio");
  return check.Decide(
      d.mean() - 2 * d.standard_error(),
      absl::StrFormat("The differences, D = %.2g nats per token, are too large for "
                      "numerical noise: other weights (another version of the policy, "
                      "an adapter left out), or another prompt or chat template.",
                      d.mean()));
}

}  // namespace sis
