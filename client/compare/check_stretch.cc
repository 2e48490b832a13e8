#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/compare/checks.h"
#include "client/compare/moments.h"

namespace sis {
namespace {

// How far the files are apart at each position, from 0 to 1, over all sequences.
std::vector<Moments> ApartByPosition(const Part& part) {
  std::vector<Moments> profile;
  for (const ComparedPosition& at : part.positions) {
    const double apart = at.has_lists() ? at.total_variation : std::abs(at.decided->log_ratio);
    if (std::isnan(apart)) continue;
    profile.resize(std::max(profile.size(), size_t{at.position} + 1));
    profile[at.position].Add(std::min(apart, 1.0));
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
  const std::vector<Moments> profile = ApartByPosition(part);
  Moments all;
  for (const Moments& apart : profile) all += apart;
  if (all.count < 2 * kEnough) return check.Untested("too few positions in common");
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
  Moments inside, outside;
  for (size_t t = 0; t < profile.size(); ++t) {
    (begin <= t && t < end ? inside : outside) += profile[t];
  }
  if (inside.count < kEnough || outside.count < kEnough) return check.Clear();
  const bool at_start = begin == 0, at_end = end == profile.size();
  return check.Decide(
      inside.mean() - outside.mean(),
      absl::StrFormat("The files differ at positions %d to %d alone: there the lists' total "
                      "variation is %.2g, elsewhere %.2g. %s",
                      begin, end - 1, inside.mean(), outside.mean(),
                      at_start ? "The context was another one at first: a prompt that was cut, or "
                                 "values cached of another prompt."
                      : at_end ? "From there on the context is another one: it was cut or "
                                 "grew too long for one side."
                               : "What generated or scored them had another context."));
}

}  // namespace sis
