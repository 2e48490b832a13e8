#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_format.h"
#include "client/compare/checks.h"

namespace sis {
namespace {

// Of the positions where a list leaves something out by the other file, how many lists sum to 1
// themselves: what a filter leaves.
struct Share {
  size_t lists = 0;
  size_t summing_to_1 = 0;

  void Add(bool sums_to_1) {
    ++lists;
    summing_to_1 += sums_to_1;
  }
  double value() const { return static_cast<double>(summing_to_1) / static_cast<double>(lists); }
};

struct Masses {
  double own = 0;
  double other = 0;  // what the other file gives the same tokens
};

// Nothing if the other file does not list them all.
std::optional<Masses> MassesOf(const RecordedSet& set, const RecordedSet& other) {
  if (set.top.empty()) return std::nullopt;
  Masses masses;
  for (const ListedToken& token : set.top) {
    const std::optional<float> log_prob = other.LogProbOf(token.id);
    if (!log_prob) return std::nullopt;
    masses.own += std::exp(token.log_prob);
    masses.other += std::exp(*log_prob);
  }
  return masses;
}

constexpr size_t kEnough = 5;

// Whether the tokens of a list have the same probabilities in the other file, up to a factor.
bool AreProportional(const RecordedSet& a, const RecordedSet& b) {
  constexpr double kNoise = 0.3;  // nats
  const CentredLogProbs centred = Centred(a, b);
  double sum = 0;
  for (size_t i = 0; i < centred.ids.size(); ++i) sum += std::abs(centred.a[i] - centred.b[i]);
  return sum <= kNoise * static_cast<double>(centred.ids.size());
}

// A filter may leave more than the engine lists: lists that are shorter than asked for tell most,
// and only if there are too few of them all others count.
Share CountLists(std::span<const ComparedPosition> positions, bool of_b) {
  size_t longest = 0;
  const bool gathered = AreGathered(positions) &&
                        std::all_of(positions.begin(), positions.end(), [](const auto& position) {
                          return position.a->top.size() == position.b->top.size();
                        });
  for (const ComparedPosition& position : positions) {
    longest = std::max(longest, (of_b ? position.b : position.a)->top.size());
  }
  Share all, shorter;
  for (const ComparedPosition& position : positions) {
    const RecordedSet& set = of_b ? *position.b : *position.a;
    const std::optional<Masses> masses = MassesOf(set, of_b ? *position.a : *position.b);
    if (!masses) continue;
    if (gathered) {
      // The record is rounded down, its length may be that of a mass target, and the other side is
      // known of all its tokens, however little they have to do with each other.
      if (masses->other <= 0.98) {
        all.Add(masses->own > 0.995 && AreProportional(*position.a, *position.b));
      }
      continue;
    }
    const bool sums_to_1 = masses->own > 0.998;
    if (masses->other <= 0.98) all.Add(sums_to_1);
    // Nothing but a filter makes lists shorter, so that little left out is evidence: of top-p 0.99.
    if (set.top.size() < longest && masses->other <= 0.997) shorter.Add(sums_to_1);
  }
  return shorter.lists < kEnough ? all : shorter;
}

}  // namespace

Check CheckFilter(const Part& part) {
  Check check{
      .name = "filter",
      .question = "Are both before, or both after, a filter (top-p, top-k, min-p)?",
      .statistic =
          "of the lists whose tokens have less than 0.98 in the other file (0.997 if lists "
          "are shorter than others), the share whose probabilities sum to 1",
      .limit = 0.5,
      .reason = "without a filter no list of some tokens sums to 1, with one all do",
      .setting =
          "top-p, top-k and min-p: record raw log-probs, or apply the same filter in the trainer"};
  const Share a = CountLists(part.positions, /*of_b=*/false);
  const Share b = CountLists(part.positions, /*of_b=*/true);
  if (a.lists < kEnough && b.lists < kEnough) {
    return check.Untested("too few positions where the lists leave something out");
  }
  const bool is_b = a.lists < kEnough || (b.lists >= kEnough && b.value() > a.value());
  const Share& most = is_b ? b : a;
  return check.Decide(
      most.value(),
      absl::StrFormat(
          "The log-probs are of different kinds: those of %s are processed, "
          "renormalised over what a filter (top-p, top-k, min-p) left, those "
          "of %s are not. %d of %d lists of %s sum to 1 though they leave something out.",
          is_b ? "B" : "A", is_b ? "A" : "B", most.summing_to_1, most.lists, is_b ? "B" : "A"));
}

}  // namespace sis
