#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/compare/checks.h"
#include "client/compare/moments.h"
#include "client/compare/temperature_fit.h"

namespace sis {
namespace {

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// How the log-prob of a single token differs, beyond what normalisers and temperature explain.
struct TokenDifference {
  int32_t id;
  bool seen;          // whether the text has the token already
  double difference;  // of B's log-prob to A's, nats, less the median of the position's tokens
};

// Nothing without three tokens in common. A token that only one file lists counts, if it would
// have had to be in the other list by kSurelyMissed, with the least difference that it must have.
void AddDifferences(const RecordedSet& a, const RecordedSet& b, double slope,
                    const absl::flat_hash_set<int32_t>& seen,
                    std::vector<TokenDifference>& differences) {
  constexpr double kSurelyMissed = 0.3;  // nats
  std::vector<double> common;
  for (const ListedToken& token : a.top) {
    if (const auto other = b.Listed(token.id)) common.push_back(*other - slope * token.log_prob);
  }
  if (common.size() < 3) return;
  const double median = Median(common);
  const auto add = [&](int32_t id, double difference) {
    differences.push_back({id, seen.contains(id), difference - median});
  };
  const double least_a = a.top.back().log_prob, least_b = b.top.back().log_prob;
  for (const ListedToken& token : a.top) {
    const double expected = slope * token.log_prob + median;
    if (const auto other = b.Listed(token.id)) {
      add(token.id, *other - slope * token.log_prob);
    } else if (expected > least_b + kSurelyMissed) {
      add(token.id, least_b - slope * token.log_prob);
    }
  }
  for (const ListedToken& token : b.top) {
    const bool surely = token.log_prob - median > slope * least_a + kSurelyMissed;
    if (!a.Listed(token.id) && surely) add(token.id, token.log_prob - slope * least_a);
  }
}

constexpr size_t kMostTokens = 8;
constexpr size_t kEnough = 6;   // positions with a token
constexpr double kLeast = 0.2;  // nats
constexpr double kErrors = 5;   // standard errors
constexpr double kNearlyAll = 0.95;

struct Moves {
  Moments moments;
  double up = 0, down = 0;  // how often the token is moved by kLeast or more

  void Add(double value) {
    moments.Add(value);
    up += value >= kLeast;
    down += value <= -kLeast;
  }
  double explained() const {
    return moments.sum * moments.sum / static_cast<double>(moments.count);
  }
  // Of a token that one list leaves out differences are bounds, which spread but have one sign.
  bool IsBiased() const {
    if (moments.count < kEnough) return false;
    return std::abs(moments.mean()) >= std::max(kLeast, kErrors * moments.standard_error()) ||
           std::max(up, down) >= kNearlyAll * static_cast<double>(moments.count);
  }
};

}  // namespace

Check CheckBias(const Part& part, absl::flat_hash_set<int32_t>& biased) {
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
  const double slope = FitTemperature(part.positions).slope;
  std::vector<TokenDifference> differences;
  absl::flat_hash_set<int32_t> seen;
  for (const ComparedPosition& position : part.positions) {
    if (position.position == 0) seen.clear();
    AddDifferences(*position.a, *position.b, slope, seen, differences);
    seen.insert(position.a->sampled_id);
  }
  if (differences.size() < 50) return check.Untested("too few tokens are listed by both files");
  // What repetitions cost is a penalty's matter.
  absl::flat_hash_map<int32_t, Moves> unseen, all;
  double total = 0;
  for (const TokenDifference& one : differences) {
    total += one.difference * one.difference;
    all[one.id].Add(one.difference);
    if (!one.seen) unseen[one.id].Add(one.difference);
  }
  std::vector<std::pair<double, int32_t>> explained;
  for (const auto& [id, moves] : unseen) {
    if (moves.IsBiased()) explained.emplace_back(all[id].explained(), id);
  }
  std::sort(explained.rbegin(), explained.rend());
  explained.resize(std::min(explained.size(), kMostTokens));
  double sum = 0;
  std::string tokens;
  for (const auto& [share, id] : explained) {
    sum += share;
    absl::StrAppendFormat(&tokens, "%s%d by %+.2f", tokens.empty() ? "" : ", ", id,
                          all[id].moments.mean());
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
