#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "client/compare/checks.h"
#include "client/compare/temperature_fit.h"

namespace sis {

TemperatureFit FitTemperature(std::span<const ComparedPosition> positions) {
  TemperatureFit fit;
  double aa = 0, bb = 0, ab = 0;
  for (const ComparedPosition& position : positions) {
    const CentredLogProbs centred = Centred(*position.a, *position.b);
    if (centred.ids.size() < 3) continue;
    ++fit.positions;
    for (size_t i = 0; i < centred.ids.size(); ++i) {
      aa += centred.a[i] * centred.a[i];
      bb += centred.b[i] * centred.b[i];
      ab += centred.a[i] * centred.b[i];
    }
  }
  // Below it the lists hardly have to do with each other: another context, with more spread or
  // less.
  constexpr double kLeastCorrelation = 0.7;
  if (!(aa > 0 && bb > 0 && ab > kLeastCorrelation * std::sqrt(aa * bb))) return fit;
  fit.correlates = true;
  // Both sides have noise: the slope that treats them alike.
  fit.slope = std::sqrt(bb / aa);
  const double without = aa + bb - 2 * ab;
  const double with = (bb + fit.slope * fit.slope * aa - 2 * fit.slope * ab) / fit.slope;
  // Differences of the size of float32's rounding tell nothing.
  if (without > 1e-9 * aa) fit.explained = std::max(0.0, 1 - with / without);
  return fit;
}

Check CheckTemperature(const Part& part) {
  constexpr size_t kEnough = 5;
  // What noise of the size of 4-bit weights may feign is below 0.02.
  constexpr double kLeast = 0.03;
  Check check{.name = "temperature",
              .question = "Is the same temperature applied?",
              .statistic =
                  "share of the squared differences of log-probs that one temperature "
                  "explains, if it is 3% from 1",
              .limit = 0.2,
              .reason = "numerical noise gives 0.06 and less, a temperature of 0.95 0.3",
              .setting =
                  "the temperature: divide the trainer's logits by that of sampling, or record raw "
                  "log-probs"};
  const TemperatureFit fit = FitTemperature(part.positions);
  if (fit.positions < kEnough) return check.Untested("too few positions with tokens in common");
  if (!fit.correlates) return check.Untested("the lists hardly have to do with each other");
  const bool near_1 = std::abs(std::log(fit.slope)) < kLeast;
  return check.Decide(
      near_1 ? 0 : fit.explained,
      absl::StrFormat("The temperature is applied on one side only: B looks like A at "
                      "temperature %.2f (A like B at %.2f), which explains %.0f%% of the "
                      "squared differences.",
                      1 / fit.slope, fit.slope, 100 * fit.explained));
}

}  // namespace sis
