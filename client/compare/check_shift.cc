#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/compare/checks.h"

namespace sis {
namespace {

constexpr std::array<int, 6> kShifts = {1, -1, 2, -2, 3, -3};

std::string Tokens(int count) { return count == 1 ? "one token" : absl::StrCat(count, " tokens"); }

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
using DistanceOf = absl::FunctionRef<Distance(const RecordedSet&, const RecordedSet&)>;

// The mean distance of one file at each position and another, or the same, `shift` positions
// further on.
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

// What may stand at other positions than its tokens.
struct Shifted {
  const char* what;
  bool gathered;  // B's are those of whatever A lists, so that B's are of another position
  DistanceOf distance_of;
  // Of a token and the values that stand for it; NaN if they can't tell.
  DistanceOf contradiction;
};

// How much worse a file contradicts itself as it is than with the values `shift` positions further
// on: about 0 in the file that is right or can't tell.
double Mended(std::span<const ComparedPosition> positions, File file, int shift,
              DistanceOf contradiction) {
  const auto mean = [&](int by) {
    const Mean all = MeanDistance(positions, file, file, by, contradiction);
    return all.count == 0 ? 0.0 : all.value();
  };
  return mean(0) - mean(shift);
}

// What is found where values of A at a position are those of B `shift` positions further on.
std::string ShiftFinding(std::span<const ComparedPosition> positions, int shift,
                         const Shifted& shifted) {
  const double a = Mended(positions, &ComparedPosition::a, -shift, shifted.contradiction);
  const double b = Mended(positions, &ComparedPosition::b, shift, shifted.contradiction);
  const bool is_a = a > b && !shifted.gathered;
  const std::string distance = Tokens(std::abs(shift));
  const bool later = is_a ? shift < 0 : shift > 0;  // than they should be
  return absl::StrFormat(
      "%s of %s belong %s %s: those of %s at a position are those of %s %s %s.%s", shifted.what,
      is_a                          ? "A"
      : a == b && !shifted.gathered ? "A or B"
                                    : "B",
      distance, later ? "further back" : "further on", is_a ? "B" : "A", is_a ? "A" : "B", distance,
      later ? "later" : "earlier",
      later ? ""
            : " Were logits taken at the position of the token, instead of the one before it?");
}

// Says what the best shift gives, of at least `enough` positions.
Check CheckShift(Check check, std::span<const ComparedPosition> positions, size_t enough,
                 const Shifted& shifted) {
  constexpr double kLeastDistance = 0.3;
  const auto mean = [&](int shift) {
    return MeanDistance(positions, &ComparedPosition::a, &ComparedPosition::b, shift,
                        shifted.distance_of);
  };
  const Mean unshifted = mean(0);
  if (unshifted.count >= enough && unshifted.sum == 0) return check.Clear();
  int best = 0;
  double best_ratio = std::numeric_limits<double>::infinity();
  for (const int shift : kShifts) {
    const Mean by = mean(shift);
    if (by.count < enough || unshifted.count < enough) continue;
    const double ratio = by.value() / unshifted.value();
    if (ratio < best_ratio) {
      best = shift;
      best_ratio = ratio;
    }
  }
  if (best == 0) return check.Untested("too few positions in common");
  if (unshifted.value() < kLeastDistance) {
    check.value = best_ratio;
    return check.Clear();
  }
  return check.Decide(best_ratio, ShiftFinding(positions, best, shifted));
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

Check CheckTokensShifted(const Part& part) {
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
  for (const ComparedSequence& sequence : part.sequences) {
    unshifted += EqualTokens(*sequence.a, *sequence.b);
  }
  int best = 0;
  size_t best_equal = 0;
  for (const int shift : kShifts) {
    size_t equal = 0;
    for (const ComparedSequence& sequence : part.sequences) {
      equal += EqualTokens(*sequence.a, *sequence.b, shift);
    }
    if (equal > best_equal) {
      best = shift;
      best_equal = equal;
    }
  }
  if (std::max(unshifted, best_equal) < kEnough) {
    return check.Untested("the texts have too little in common");
  }
  // As if one more agreed, so that nothing is divided by 0.
  const double ratio = static_cast<double>(best_equal) / static_cast<double>(unshifted + 1);
  return check.Decide(
      best_equal < kEnough ? std::min(ratio, 1.0) : ratio,
      absl::StrCat("The files are shifted by ", Tokens(std::abs(best)), ": ", best > 0 ? "B" : "A",
                   " has ", Tokens(std::abs(best)), " more at the start of its sequences."));
}

Check CheckListsShifted(const Part& part) {
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
  const bool gathered = AreGathered(part.positions);
  return CheckShift(check, part.positions, /*enough=*/5,
                    {"The lists", gathered,
                     [gathered](const RecordedSet& a, const RecordedSet& b) {
                       if (a.top.empty() || b.top.empty()) return Distance{std::nan("")};
                       return gathered ? DistanceInCommon(a, b) : Distance{TotalVariation(a, b)};
                     },
                     // Sampled tokens are mostly in their lists.
                     [](const RecordedSet& token, const RecordedSet& list) {
                       if (list.top.empty()) return Distance{std::nan("")};
                       return Distance{list.Listed(token.sampled_id) ? 0.0 : 1.0};
                     }});
}

Check CheckSampledShifted(const Part& part) {
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
  return CheckShift(check, part.positions, /*enough=*/10,
                    {"The log-probs of the sampled tokens", /*gathered=*/false,
                     [](const RecordedSet& a, const RecordedSet& b) {
                       return Distance{Difference(a.given_log_prob, b.given_log_prob)};
                     },
                     [](const RecordedSet& token, const RecordedSet& given) {
                       return Distance{token.top.empty() ? std::nan("")
                                                         : Difference(token.sampled_log_prob,
                                                                      given.given_log_prob)};
                     }});
}

}  // namespace sis
