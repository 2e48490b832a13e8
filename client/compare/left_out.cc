#include "client/compare/left_out.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sis {

std::vector<LeftOut> CountLeftOut(const RecordedPair& pair, const Decisions& decisions) {
  size_t parted_sequences = 0;
  LeftOut parted{"parted", 0, ""}, only_a{"only_a", 0, "that only A has"},
      only_b{"only_b", 0, "that only B has"},
      without_a{"without_a", 0, "where A gives no log-prob of its own token"},
      without_b{"without_b", 0, "where B gives no log-prob of A's token"},
      impossible{"impossible", 0, "where B's list and its own token's log-prob sum to more than 1"};
  for (size_t i = 0; i < pair.a.sequences.size(); ++i) {
    const RecordedSets& a = pair.a.sequences[i];
    const RecordedSets& b = pair.b.sequences[i];
    const std::vector<DecidedPosition>& decided = decisions.sequences[i];
    const size_t common = decided.size(), rest = std::max(a.size(), b.size()) - common;
    if (common > 0 && a[common - 1].sampled_id != b[common - 1].sampled_id) {
      parted.positions += rest;
      parted_sequences += rest > 0;
    } else {
      (a.size() > b.size() ? only_a : only_b).positions += rest;
    }
    for (size_t t = 0; t < common; ++t) {
      if (decided[t].decision != Decision::kMissing) continue;
      const bool in_a = std::isfinite(a[t].sampled_log_prob);
      const bool in_b = b[t].LogProbOf(a[t].sampled_id).has_value();
      ++(!in_a ? without_a : !in_b ? without_b : impossible).positions;
    }
  }
  parted.reason = absl::StrCat("after a token that the files sampled differently (in ",
                               parted_sequences, " of ", pair.a.sequences.size(), " sequences)");
  std::vector<LeftOut> all = {parted, only_a, only_b, without_a, without_b, impossible};
  std::erase_if(all, [](const LeftOut& part) { return part.positions == 0; });
  return all;
}

std::string DescribeLeftOut(const std::vector<LeftOut>& left_out, size_t scored) {
  size_t positions = 0;
  std::vector<std::string> reasons;
  for (const LeftOut& part : left_out) {
    positions += part.positions;
    reasons.push_back(absl::StrCat(part.positions, " ", part.reason));
  }
  return absl::StrCat(positions, " of ", positions + scored,
                      " positions are left out: ", absl::StrJoin(reasons, "; "), ".");
}

}  // namespace sis
