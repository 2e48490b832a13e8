#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/compare/checks.h"

namespace sis {
namespace {

constexpr std::array<int, 6> kShifts = {1, -1, 2, -2, 3, -3};

std::string Tokens(int count) { return count == 1 ? "one token" : absl::StrCat(count, " tokens"); }

// How many tokens of A, from the first on, B has `shift` positions later.
size_t EqualTokens(const RecordedSets& a, const RecordedSets& b, int shift) {
  const size_t skip_a = std::max(0, -shift), skip_b = std::max(0, shift);
  size_t equal = 0;
  while (skip_a + equal < a.size() && skip_b + equal < b.size() &&
         a[skip_a + equal].sampled_id == b[skip_b + equal].sampled_id) {
    ++equal;
  }
  return equal;
}

struct Mean {
  double sum = 0;
  size_t count = 0;
  double value() const { return sum / static_cast<double>(count); }
};

// The mean distance of A at each position and B `shift` positions further on.
template <typename Distance>
Mean MeanDistance(std::span<const ComparedPosition> positions, int shift, Distance distance) {
  Mean mean;
  const auto size = static_cast<int64_t>(positions.size());
  for (int64_t i = 0; i < size; ++i) {
    const int64_t j = i + shift;
    if (j < 0 || j >= size || positions[i].sequence != positions[j].sequence) continue;
    const double value = distance(*positions[i].a, *positions[j].b);
    if (std::isnan(value)) continue;
    mean.sum += value;
    ++mean.count;
  }
  return mean;
}

// Fills in what the best shift gives.
template <typename Distance>
void CheckShift(Check& check, std::span<const ComparedPosition> positions, size_t enough,
                double least_distance, const char* what, Distance distance) {
  const Mean unshifted = MeanDistance(positions, 0, distance);
  int best = 0;
  double best_ratio = std::numeric_limits<double>::infinity();
  for (const int shift : kShifts) {
    const Mean shifted = MeanDistance(positions, shift, distance);
    if (shifted.count < enough || unshifted.count < enough || unshifted.sum == 0) continue;
    const double ratio = shifted.value() / unshifted.value();
    if (ratio < best_ratio) {
      best = shift;
      best_ratio = ratio;
    }
  }
  if (best == 0) {
    if (unshifted.count >= enough && unshifted.sum == 0) {
      check.outcome = Check::Outcome::kClear;
      return;
    }
    check.Untested("too few positions in common");
    return;
  }
  if (unshifted.value() < least_distance) {
    check.outcome = Check::Outcome::kClear;
    check.value = best_ratio;
    return;
  }
  check.Decide(
      best_ratio,
      absl::StrFormat("%s of B belong %s %s: those of A at a position are those of B %s "
                      "%s. Were logits taken at the position of the token, instead of "
                      "the one before it?",
                      what, Tokens(std::abs(best)), best > 0 ? "further back" : "further on",
                      Tokens(std::abs(best)), best > 0 ? "later" : "earlier"));
}

}  // namespace

Check CheckTokensShifted(const RecordedPair& pair) {
  constexpr size_t kEnough = 8;
  Check check{.name = "tokens_shifted",
              .question = "Do both start with the same token?",
              .statistic =
                  "tokens that agree from the start if one file skips some, per token that "
                  "agrees without",
              .limit = 4,
              .reason = "without a shift it is below 1, but for texts that repeat one token"};
  size_t unshifted = 0;
  for (size_t i = 0; i < pair.a.sequences.size(); ++i) {
    unshifted += EqualTokens(pair.a.sequences[i], pair.b.sequences[i], 0);
  }
  int best = 0;
  size_t best_equal = 0;
  for (const int shift : kShifts) {
    size_t equal = 0;
    for (size_t i = 0; i < pair.a.sequences.size(); ++i) {
      equal += EqualTokens(pair.a.sequences[i], pair.b.sequences[i], shift);
    }
    if (equal > best_equal) {
      best = shift;
      best_equal = equal;
    }
  }
  if (std::max(unshifted, best_equal) < kEnough) {
    check.Untested("the texts have too little in common");
    return check;
  }
  // As if one more agreed, so that nothing is divided by 0.
  const double ratio = static_cast<double>(best_equal) / static_cast<double>(unshifted + 1);
  check.Decide(
      best_equal < kEnough ? std::min(ratio, 1.0) : ratio,
      absl::StrCat("The files are shifted by ", Tokens(std::abs(best)), ": ", best > 0 ? "B" : "A",
                   " has ", Tokens(std::abs(best)), " more at the start of its sequences."));
  return check;
}

Check CheckListsShifted(std::span<const ComparedPosition> positions) {
  Check check{
      .name = "lists_shifted",
      .question = "Do lists stand at the positions of their tokens?",
      .statistic = "total variation of the lists with the best shift, over that without",
      .side = Check::Side::kBelow,
      .limit = 0.5,
      .reason = "engines that differ numerically have 3 and more, shifted lists below 0.05"};
  CheckShift(check, positions, /*enough=*/5, /*least_distance=*/0.3, "The lists",
             [](const RecordedSet& a, const RecordedSet& b) {
               if (a.top.empty() || b.top.empty()) return std::nan("");
               return TotalVariation(a, b);
             });
  return check;
}

Check CheckSampledShifted(std::span<const ComparedPosition> positions) {
  Check check{.name = "sampled_shifted",
              .question = "Do log-probs stand at the positions of their tokens?",
              .statistic =
                  "mean difference of the sampled tokens' log-probs with the best shift, "
                  "over that without",
              .side = Check::Side::kBelow,
              .limit = 0.33,
              .reason = "engines that differ numerically have 4 and more, shifted ones below 0.05"};
  CheckShift(check, positions, /*enough=*/10, /*least_distance=*/0.3,
             "The log-probs of the sampled tokens", [](const RecordedSet& a, const RecordedSet& b) {
               const double difference =
                   std::abs(static_cast<double>(a.given_log_prob) - b.given_log_prob);
               return std::isfinite(difference) ? difference : std::nan("");
             });
  return check;
}

}  // namespace sis
