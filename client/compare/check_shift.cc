#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/compare/checks.h"

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

// NaN if a log-prob is not there.
double Difference(double a, double b) {
  const double difference = std::abs(a - b);
  return std::isfinite(difference) ? difference : std::nan("");
}

// How far a file is from another at a position: `of` counts as 1. NaN if nothing tells.
struct Distance {
  double distance;
  double of = 1;
};

struct Mean {
  double sum = 0;
  double of = 0;
  size_t count = 0;
  double value() const { return sum / of; }
};

using File = const RecordedSet* ComparedPosition::*;

// The mean distance of one file at each position and another, or the same, `shift` positions
// further on.
template <typename DistanceOf>
Mean MeanDistance(std::span<const ComparedPosition> positions, File first, File second, int shift,
                  DistanceOf distance_of) {
  Mean mean;
  const auto size = static_cast<int64_t>(positions.size());
  for (int64_t i = 0; i < size; ++i) {
    const int64_t j = i + shift;
    if (j < 0 || j >= size || positions[i].sequence != positions[j].sequence) continue;
    const Distance distance = distance_of(*(positions[i].*first), *(positions[j].*second));
    if (std::isnan(distance.distance)) continue;
    mean.sum += distance.distance;
    mean.of += distance.of;
    ++mean.count;
  }
  return mean;
}

// How much worse a file contradicts itself as it is than with the values `shift` positions further
// on: about 0 in the file that is right or can't tell. `contradiction` is that of a token and the
// values that stand for it, NaN if they can't tell.
template <typename Contradiction>
double Mended(std::span<const ComparedPosition> positions, File file, int shift,
              Contradiction contradiction) {
  const auto mean = [&](int by) {
    const Mean all = MeanDistance(positions, file, file, by, contradiction);
    return all.count == 0 ? 0.0 : all.value();
  };
  return mean(0) - mean(shift);
}

// What is found where values of A at a position are those of B `shift` positions further on. If B's
// are gathered, of whatever A lists, it is B's that are of another position.
template <typename Contradiction>
std::string ShiftFinding(std::span<const ComparedPosition> positions, int shift, const char* what,
                         bool gathered, Contradiction contradiction) {
  const double a = Mended(positions, &ComparedPosition::a, -shift, contradiction);
  const double b = Mended(positions, &ComparedPosition::b, shift, contradiction);
  const bool is_a = a > b && !gathered;
  const std::string distance = Tokens(std::abs(shift));
  const bool later = is_a ? shift < 0 : shift > 0;  // than they should be
  return absl::StrFormat(
      "%s of %s belong %s %s: those of %s at a position are those of %s %s %s.%s", what,
      is_a                  ? "A"
      : a == b && !gathered ? "A or B"
                            : "B",
      distance, later ? "further back" : "further on", is_a ? "B" : "A", is_a ? "A" : "B", distance,
      later ? "later" : "earlier",
      later ? ""
            : " Were logits taken at the position of the token, instead of the one before it?");
}

// Fills in what the best shift gives.
template <typename DistanceOf, typename Contradiction>
void CheckShift(Check& check, std::span<const ComparedPosition> positions, size_t enough,
                double least_distance, const char* what, bool gathered, DistanceOf distance_of,
                Contradiction contradiction) {
  const auto mean = [&](int shift) {
    return MeanDistance(positions, &ComparedPosition::a, &ComparedPosition::b, shift, distance_of);
  };
  const Mean unshifted = mean(0);
  int best = 0;
  double best_ratio = std::numeric_limits<double>::infinity();
  for (const int shift : kShifts) {
    const Mean shifted = mean(shift);
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
  check.Decide(best_ratio, ShiftFinding(positions, best, what, gathered, contradiction));
}

// Of the probabilities of tokens in both lists, which tell nothing of the tokens in one.
Distance DistanceInCommon(const RecordedSet& a, const RecordedSet& b) {
  Distance sum{0, 0};
  for (const ListedToken& token : a.top) {
    const std::optional<float> other = b.Listed(token.id);
    if (!other) continue;
    const double p = std::exp(token.log_prob), q = std::exp(*other);
    sum.distance += std::abs(p - q);
    sum.of += std::max(p, q);
  }
  return sum.of > 0 ? sum : Distance{std::nan("")};
}

}  // namespace

Check CheckTokensShifted(std::span<const ComparedSequence> sequences) {
  constexpr size_t kEnough = 8;
  Check check{.name = "tokens_shifted",
              .question = "Do both start with the same token?",
              .statistic =
                  "tokens that agree from the start if one file skips some, per token that "
                  "agrees without",
              .limit = 4,
              .reason = "without a shift it is below 1, but for texts that repeat one token",
              .setting =
                  "where the prompt ends: a beginning-of-sequence token, or the prompt's last "
                  "token counted as generated"};
  size_t unshifted = 0;
  for (const ComparedSequence& sequence : sequences) {
    unshifted += EqualTokens(*sequence.a, *sequence.b, 0);
  }
  int best = 0;
  size_t best_equal = 0;
  for (const int shift : kShifts) {
    size_t equal = 0;
    for (const ComparedSequence& sequence : sequences) {
      equal += EqualTokens(*sequence.a, *sequence.b, shift);
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
      .statistic =
          "total variation of the lists (of tokens in both, if a file holds the "
          "other's tokens) with the best shift, over that without",
      .side = Check::Side::kBelow,
      .limit = 0.5,
      .reason = "engines that differ numerically have 3 and more, shifted lists below 0.05",
      .setting =
          "the slice of the logits: those of position t - 1 give the probabilities of token t"};
  const bool gathered = AreGathered(positions);
  CheckShift(
      check, positions, /*enough=*/5, /*least_distance=*/0.3, "The lists", gathered,
      [gathered](const RecordedSet& a, const RecordedSet& b) {
        if (a.top.empty() || b.top.empty()) return Distance{std::nan("")};
        return gathered ? DistanceInCommon(a, b) : Distance{TotalVariation(a, b)};
      },
      // Sampled tokens are mostly in their lists.
      [](const RecordedSet& token, const RecordedSet& list) {
        if (list.top.empty()) return Distance{std::nan("")};
        return Distance{list.Listed(token.sampled_id) ? 0.0 : 1.0};
      });
  return check;
}

Check CheckSampledShifted(std::span<const ComparedPosition> positions) {
  Check check{
      .name = "sampled_shifted",
      .question = "Do log-probs stand at the positions of their tokens?",
      .statistic =
          "mean difference of the sampled tokens' log-probs with the best shift, "
          "over that without",
      .side = Check::Side::kBelow,
      .limit = 0.33,
      .reason = "engines that differ numerically have 4 and more, shifted ones below 0.05",
      .setting =
          "the slice of the log-probs: those of token t come from the logits of position t - 1"};
  CheckShift(
      check, positions, /*enough=*/10, /*least_distance=*/0.3,
      "The log-probs of the sampled tokens", /*gathered=*/false,
      [](const RecordedSet& a, const RecordedSet& b) {
        return Distance{Difference(a.given_log_prob, b.given_log_prob)};
      },
      [](const RecordedSet& token, const RecordedSet& given) {
        return Distance{token.top.empty()
                            ? std::nan("")
                            : Difference(token.sampled_log_prob, given.given_log_prob)};
      });
  return check;
}

}  // namespace sis
