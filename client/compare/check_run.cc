#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "client/compare/checks.h"
#include "client/compare/log_ratios.h"

namespace sis {
namespace {

constexpr size_t kEnough = 20;

}  // namespace

Check CheckCoverage(std::span<const ComparedSequence> sequences) {
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
  for (const ComparedSequence& sequence : sequences) {
    for (size_t t = 0; t < sequence.decided->size(); ++t) {
      const DecidedPosition& decided = (*sequence.decided)[t];
      if (decided.decision == Decision::kMissing) continue;
      double mass = 0;
      for (const ListedToken& token : (*sequence.a)[t].top) mass += std::exp(token.log_prob);
      ++count;
      outside += decided.decision == Decision::kOutsideTopK;
      top_k = std::max(top_k, (*sequence.a)[t].top.size());
      residual += decided.residual_mass;
      left_out += std::max(0.0, 1 - mass);
    }
  }
  if (count < kEnough) {
    check.Untested("too few positions have a ratio");
    return check;
  }
  const auto positions = static_cast<double>(count);
  residual /= positions;
  left_out /= positions;
  if (left_out < residual / 2) {
    check.outcome = Check::Outcome::kClear;
    return check;
  }
  check.Decide(residual, absl::StrFormat(
                             "K is too small: %d recorded tokens leave out %.0f%% of the "
                             "behaviour policy's mass and %.0f%% of the current one's, and %.0f%% "
                             "of the sampled tokens, which are never accepted.",
                             top_k, 100 * left_out, 100 * residual,
                             100 * static_cast<double>(outside) / positions));
  return check;
}

Check CheckStaleness(std::span<const ComparedSequence> sequences) {
  constexpr double kBeyondNoise = 0.15;  // nats
  Check check{.name = "staleness",
              .question = "Do tokens of older versions agree as fresh ones do?",
              .statistic =
                  "D per token behind the current version in nats, less two standard "
                  "errors, if fresh tokens have half of it at most",
              .limit = kBeyondNoise,
              .reason = "what fresh tokens do not show is no fault of the engines, but age",
              .setting = "how often workers load new weights, updates per rollout, max_staleness"};
  const LogRatios fresh = LogRatiosOf(
      sequences, [](const DecidedPosition& position) { return position.staleness == 0; });
  const LogRatios stale = LogRatiosOf(
      sequences, [](const DecidedPosition& position) { return position.staleness > 0; });
  if (fresh.count < kEnough || stale.count < kEnough) {
    check.Untested(stale.count < kEnough ? "too few tokens are behind the current version"
                                         : "too few tokens are of the current version");
    return check;
  }
  if (fresh.mean * 2 > stale.mean || fresh.mean >= kBeyondNoise) {
    check.outcome = Check::Outcome::kClear;
    return check;
  }
  check.Decide(stale.mean - 2 * stale.standard_error,
               absl::StrFormat("The tokens are too old: those of the current version have D = %.2g "
                               "nats per token, those behind it %.2g.",
                               fresh.mean, stale.mean));
  return check;
}

}  // namespace sis
