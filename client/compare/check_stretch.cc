#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/compare/checks.h"

namespace sis {
namespace {

// How far the files are apart at positions, from 0 to 1 at each.
struct Apart {
  double sum = 0;
  size_t count = 0;

  double mean() const { return sum / static_cast<double>(count); }
  void Add(const Apart& other) {
    sum += other.sum;
    count += other.count;
  }
};

// By position, over all sequences.
std::vector<Apart> ApartByPosition(const Part& part) {
  std::vector<Apart> profile;
  auto position = part.positions.begin();
  for (const ComparedSequence& sequence : part.sequences) {
    for (const DecidedPosition& decided : *sequence.decided) {
      const ComparedPosition& at = *position++;
      double apart = std::abs(decided.log_ratio);
      if (!at.a->top.empty() && !at.b->top.empty()) apart = TotalVariation(*at.a, *at.b);
      if (std::isnan(apart)) continue;
      profile.resize(std::max(profile.size(), size_t{at.position} + 1));
      profile[at.position].Add({std::min(apart, 1.0), 1});
    }
  }
  return profile;
}

}  // namespace

Check CheckStretch(const Part& part) {
  // Of numerical noise a position has 0.05, of another context 0.6 and more.
  constexpr double kApart = 0.25;
  constexpr size_t kEnough = 8;
  Check check{.name = "stretch",
              .question = "Do the files differ at all positions alike?",
              .statistic =
                  "total variation of the lists in the stretch of positions where it is "
                  "largest, less that elsewhere",
              .limit = 0.4,
              .reason = "numerical noise gives below 0.15, what differs everywhere below 0.3",
              .setting =
                  "prefix caching and how long prompts are cut, at the start; sliding "
                  "windows, the longest context and the scaling of positions, at the end"};
  const std::vector<Apart> profile = ApartByPosition(part);
  Apart all;
  for (const Apart& apart : profile) all.Add(apart);
  if (all.count < 2 * kEnough) {
    check.Untested("too few positions in common");
    return check;
  }
  // The stretch whose excess over kApart is largest.
  size_t begin = 0, end = 0, start = 0;
  double best = 0, excess = 0;
  for (size_t t = 0; t < profile.size(); ++t) {
    excess += profile[t].sum - kApart * static_cast<double>(profile[t].count);
    if (excess <= 0) {
      excess = 0;
      start = t + 1;
    } else if (excess > best) {
      best = excess;
      begin = start;
      end = t + 1;
    }
  }
  Apart inside;
  for (size_t t = begin; t < end; ++t) inside.Add(profile[t]);
  const Apart outside{all.sum - inside.sum, all.count - inside.count};
  if (inside.count < kEnough || outside.count < kEnough) {
    check.outcome = Check::Outcome::kClear;
    return check;
  }
  const bool at_start = begin == 0, at_end = end == profile.size();
  check.Decide(
      inside.mean() - outside.mean(),
      absl::StrFormat("The files differ at positions %d to %d alone: there the lists' total "
                      "variation is %.2g, elsewhere %.2g. %s",
                      begin, end - 1, inside.mean(), outside.mean(),
                      at_start ? "The context was another one at first: a prompt that was cut, or "
                                 "values cached of another prompt."
                      : at_end ? "From there on the context is another one: it was cut or "
                                 "grew too long for one side."
                               : "What generated or scored them had another context."));
  return check;
}

}  // namespace sis
