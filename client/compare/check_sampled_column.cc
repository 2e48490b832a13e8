#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/compare/checks.h"

namespace sis {
namespace {

struct Contradictions {
  // Positions that give the sampled token's log-prob twice, or whose list leaves it out.
  size_t comparable = 0;
  size_t contradictions = 0;  // of them
  size_t most_probable = 0;   // of these, those where the other is the most probable token's
};

// `gathered`: what a list leaves out may be more probable than what it has.
Contradictions Count(std::span<const ComparedSequence> sequences,
                     const RecordedSets* ComparedSequence::*file, bool gathered) {
  // Above what float16 rounds away.
  constexpr double kSame = 0.05;
  Contradictions count;
  for (const ComparedSequence& sequence : sequences) {
    for (const RecordedSet& set : *(sequence.*file)) {
      const std::optional<float> listed = set.Listed(set.sampled_id);
      if (set.top.empty() || !std::isfinite(set.given_log_prob)) continue;
      if (gathered && !listed) continue;
      ++count.comparable;
      // What a list leaves out is no more probable than the last that it has.
      if (listed ? std::abs(set.given_log_prob - *listed) <= kSame
                 : set.given_log_prob <= set.top.back().log_prob + kSame) {
        continue;
      }
      ++count.contradictions;
      count.most_probable += std::abs(set.given_log_prob - set.top.front().log_prob) <= kSame;
    }
  }
  return count;
}

}  // namespace

Check CheckSampledColumn(const Part& part) {
  constexpr size_t kEnough = 5, kFewest = 3;
  Check check{.name = "sampled_column",
              .question = "Is the sampled token's log-prob the one of its list?",
              .statistic =
                  "share of positions where the two differ by more than 0.05 nats, or the list "
                  "leaves out a token more probable than its last, in the file that has more",
              .limit = 0.05,
              .reason = "engines write the same number twice",
              .setting =
                  "which column the sampled token's log-prob is taken from, and whether both are "
                  "raw or both processed"};
  double largest = -1;
  for (const auto& [file, name] :
       {std::pair(&ComparedSequence::a, "A"), std::pair(&ComparedSequence::b, "B")}) {
    const bool gathered = file == &ComparedSequence::b && AreGathered(part.positions);
    const Contradictions count = Count(part.sequences, file, gathered);
    if (count.comparable < kEnough) continue;
    const double share =
        count.contradictions < kFewest
            ? 0
            : static_cast<double>(count.contradictions) / static_cast<double>(count.comparable);
    if (share <= largest) continue;
    largest = share;
    const bool column = count.most_probable * 2 > count.contradictions;
    check.Decide(share,
                 absl::StrFormat(
                     "In %s the sampled token's log-prob is not the one that its list gives "
                     "it or leaves for it, at %d of %d positions%s.",
                     name, count.contradictions, count.comparable,
                     column ? ", but that of the most probable token: the wrong column was "
                              "taken of a list sorted by rank"
                            : ": does the list belong to another position, or is one raw and the "
                              "other processed?"));
  }
  if (largest < 0) check.Untested("the files give the sampled token's log-prob only once");
  return check;
}

}  // namespace sis
