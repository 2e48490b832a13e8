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

Check CheckZeros(const Part& part) {
  constexpr uint32_t kRun = 8;
  Check check{
      .name = "zeros",
      .question = "Are the recorded log-probs of the sampled tokens log-probs?",
      .statistic = "D per token in nats where at least 8 recorded log-probs in a row are exactly 0",
      .limit = 0.1,
      .reason = "a policy that is certain of a token is so on both sides",
      .setting =
          "what writes the records: log-probs of 0.0 are often padding of tokens that were "
          "not sampled, or were tokenized again"};
  Moments zeros;
  size_t runs = 0;
  const ComparedPosition* first = nullptr;
  const std::vector<ComparedPosition>& all = part.positions;
  const auto is_zero = [&](size_t i) {
    return all[i].has_ratio() && all[i].a->given_log_prob == 0;
  };
  for (size_t begin = 0, end = 0; begin < all.size(); begin = std::max(end, begin + 1)) {
    for (end = begin; end < all.size() && is_zero(end) &&
                      all[end].sequence == all[begin].sequence &&
                      all[end].position - all[begin].position == end - begin;) {
      ++end;
    }
    if (end - begin < kRun) continue;
    ++runs;
    if (first == nullptr) first = &all[begin];
    for (size_t i = begin; i < end; ++i) zeros.Add(all[i].deviation());
  }
  if (runs == 0) return check.Clear();
  return check.Decide(
      zeros.mean(),
      absl::StrFormat("%d recorded log-probs in %d ranges are exactly 0, the first from position "
                      "%d of sequence %d on; the current policy differs by %.2g nats per token. "
                      "They are padding, not log-probs.",
                      zeros.count, runs, first->position, first->sequence, zeros.mean()));
}

Check CheckAhead(const Part& part) {
  Check check{
      .name = "ahead",
      .question = "Are the tokens' versions at most the run's?",
      .statistic = "share of tokens of a version newer than the run's",
      .limit = 0.001,
      .reason = "a trainer advances the version before workers have its weights",
      .setting =
          "AdvanceVersion, which the trainer must call before it hands weights out, and how "
          "workers count versions"};
  size_t count = 0, ahead = 0;
  int64_t most = 0;
  for (const ComparedPosition& position : part.positions) {
    if (!position.has_ratio()) continue;
    ++count;
    ahead += position.decided->staleness < 0;
    most = std::max(most, -position.decided->staleness);
  }
  if (count < kEnough) return check.Untested("too few positions have a ratio");
  return check.Decide(
      static_cast<double>(ahead) / static_cast<double>(count),
      absl::StrFormat("%d of %d tokens are of versions newer than the run's, by up to %d: their "
                      "age is unknown, and max_staleness doesn't apply to them.",
                      ahead, count, most));
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
    (position.decided->staleness <= 0 ? fresh : stale).Add(position.deviation());
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
