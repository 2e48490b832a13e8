#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/compare/checks.h"
#include "client/compare/temperature_fit.h"
#include "client/compare/token_differences.h"

namespace sis {
namespace {

constexpr size_t kMostTokens = 8;
constexpr size_t kEnough = 6;   // positions with a token
constexpr double kLeast = 0.2;  // nats
constexpr double kErrors = 5;   // standard errors
constexpr double kNearlyAll = 0.95;

struct Moments {
  double count = 0, sum = 0, squares = 0;
  double up = 0, down = 0;  // how often the token is moved by kLeast or more

  void Add(double value) {
    ++count;
    up += value >= kLeast;
    down += value <= -kLeast;
    sum += value;
    squares += value * value;
  }
  double mean() const { return sum / count; }
  double error() const {
    return std::sqrt(std::max(0.0, squares / count - mean() * mean()) / count);
  }
  double explained() const { return sum * sum / count; }
  // Of a token that one list leaves out differences are bounds, which spread but have one sign.
  bool IsBiased() const {
    if (count < kEnough) return false;
    return std::abs(mean()) >= std::max(kLeast, kErrors * error()) ||
           std::max(up, down) >= kNearlyAll * count;
  }
};

}  // namespace

Check CheckBias(std::span<const ComparedPosition> positions, absl::flat_hash_set<int32_t>& biased) {
  Check check{.name = "bias",
              .question = "Are no single tokens made more or less probable on one side?",
              .statistic =
                  "share of the squared differences of log-probs that a constant for each "
                  "of at most 8 tokens explains",
              .limit = 0.2,
              .reason =
                  "numerical noise gives 0: no token is moved by 0.2 nats wherever it is "
                  "listed",
              .setting =
                  "logit_bias, bad_words, allowed tokens and grammars in the request: none, "
                  "or the same in the trainer"};
  const std::vector<TokenDifference> differences =
      TokenDifferences(positions, FitTemperature(positions).slope);
  // What repetitions cost is a penalty's matter.
  absl::flat_hash_map<int32_t, Moments> unseen, all;
  double total = 0;
  for (const TokenDifference& one : differences) {
    total += one.difference * one.difference;
    all[one.id].Add(one.difference);
    if (!one.seen) unseen[one.id].Add(one.difference);
  }
  if (differences.size() < 50) {
    check.Untested("too few tokens are listed by both files");
    return check;
  }
  std::vector<std::pair<double, int32_t>> explained;
  for (const auto& [id, moments] : unseen) {
    if (!moments.IsBiased()) continue;
    explained.emplace_back(all[id].explained(), id);
  }
  std::sort(explained.rbegin(), explained.rend());
  explained.resize(std::min(explained.size(), kMostTokens));
  double sum = 0;
  std::string tokens;
  for (const auto& [share, id] : explained) {
    sum += share;
    absl::StrAppendFormat(&tokens, "%s%d by %+.2f", tokens.empty() ? "" : ", ", id, all[id].mean());
  }
  check.Decide(total > 0 ? sum / total : 0,
               absl::StrFormat("The log-probs are of different kinds: on one side a constant is "
                               "added to the logits of some tokens. B gives more, or less, nats "
                               "than A to: %s. That explains %.0f%% of the squared differences.",
                               tokens, 100 * sum / total));
  if (check.fault()) {
    for (const auto& [share, id] : explained) biased.insert(id);
  }
  return check;
}

}  // namespace sis
