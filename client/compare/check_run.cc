#include <algorithm>

#include "absl/strings/str_format.h"
#include "client/compare/checks.h"
#include "client/compare/moments.h"

namespace sis {
namespace {

constexpr size_t kEnough = 20;

}  // namespace

Check CheckCoverage(const Part& part) {
  Check check{.name = "coverage",
              .question = "Do the recorded tokens hold most of the mass?",
              .statistic =
                  "mean residual mass, if the behaviour policy's own tokens leave out as "
                  "much by half",
              .limit = 0.2,
              .reason = "such a share of what the current policy wants can never be accepted",
              .setting = "top_k or the mass target of the run: record more tokens"};
  double residual = 0, left_out = 0;
  size_t count = 0, outside = 0, top_k = 0;
  for (const ComparedPosition& position : part.positions) {
    if (!position.has_ratio()) continue;
    ++count;
    outside += position.decided->decision == Decision::kOutsideTopK;
    top_k = std::max(top_k, position.a->top.size());
    residual += position.decided->residual_mass;
    left_out += std::max(0.0, 1 - MassOf(*position.a));
  }
  if (count < kEnough) return check.Untested("too few positions have a ratio");
  const auto positions = static_cast<double>(count);
  residual /= positions;
  left_out /= positions;
  if (left_out < residual / 2) return check.Clear();
  return check.Decide(
      residual,
      absl::StrFormat("K is too small: %d recorded tokens leave out %.0f%% of the "
                      "behaviour policy's mass and %.0f%% of the current one's, and %.0f%% "
                      "of the sampled tokens, which are never accepted.",
                      top_k, 100 * left_out, 100 * residual,
                      100 * static_cast<double>(outside) / positions));
}

Check CheckStaleness(const Part& part) {
  constexpr double kBeyondNoise = 0.15;  // nats
  Check check{.name = "staleness",
              .question = "Do tokens of older versions agree as fresh ones do?",
              .statistic =
                  "D per token behind the current version in nats, less two standard "
                  "errors, if fresh tokens have half of it at most",
              .limit = kBeyondNoise,
              .reason = "what fresh tokens do not show is no fault of the engines, but age",
              .setting = "how often workers load new weights, updates per rollout, max_staleness"};
  Moments fresh, stale;
  for (const ComparedPosition& position : part.positions) {
    if (!position.has_ratio()) continue;
    (position.decided->staleness == 0 ? fresh : stale).Add(position.deviation());
  }
  if (fresh.count < kEnough || stale.count < kEnough) {
    return check.Untested(stale.count < kEnough ? "too few tokens are behind the current version"
                                                : "too few tokens are of the current version");
  }
  if (fresh.mean() * 2 > stale.mean() || fresh.mean() >= kBeyondNoise) return check.Clear();
  return check.Decide(
      stale.mean() - 2 * stale.standard_error(),
      absl::StrFormat("The tokens are too old: those of the current version have D = %.2g "
                      "nats per token, those behind it %.2g.",
                      fresh.mean(), stale.mean()));
}

}  // namespace sis
