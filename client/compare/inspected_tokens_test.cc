#include "client/compare/inspected_tokens.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace sis {
namespace {

// The last position kept is scored, one before it was not evaluated, with what is kept from 2 on.
v1::InspectSequenceResponse Kept(uint32_t cut_begin, uint32_t cut_end) {
  v1::InspectSequenceResponse sequence;
  const std::string decisions = {v1::MASKED, v1::DECISION_UNSPECIFIED, v1::MISSING, v1::ACCEPTED};
  const size_t four = 4 * decisions.size();
  sequence.set_missing_reasons(std::string(decisions.size(), '\0'));
  sequence.set_first_position(2);
  sequence.set_decisions(decisions);
  for (std::string* const array :
       {sequence.mutable_sampled_ids(), sequence.mutable_sampled_log_probs(),
        sequence.mutable_log_ratios(), sequence.mutable_acceptance_probabilities(),
        sequence.mutable_log_envelopes(), sequence.mutable_residual_masses(),
        sequence.mutable_uniforms()}) {
    array->assign(four, '\0');
  }
  sequence.mutable_staleness()->assign(2 * four, '\0');
  sequence.set_cut_begin(cut_begin);
  sequence.set_cut_end(cut_end);
  return sequence;
}

std::map<std::string, size_t> LeftOutOf(const v1::InspectSequenceResponse& sequence) {
  const auto tokens = ReadInspectedTokens({&sequence, 1});
  std::map<std::string, size_t> positions;
  for (const LeftOut& part : tokens.value().left_out) positions[part.name] = part.positions;
  return positions;
}

TEST(InspectedTokensTest, APositionIsLeftOutForOneReason) {
  using Counts = std::map<std::string, size_t>;
  EXPECT_EQ(LeftOutOf(Kept(0, 0)), (Counts{{"missing", 1}, {"masked", 1}, {"not_evaluated", 3}}));
  EXPECT_EQ(LeftOutOf(Kept(6, 9)),
            (Counts{{"missing", 1}, {"masked", 1}, {"not_evaluated", 3}, {"not_kept", 3}}));
  // What is cut is a range around positions that are kept.
  EXPECT_EQ(LeftOutOf(Kept(1, 8)),
            (Counts{{"missing", 1}, {"masked", 1}, {"not_evaluated", 1}, {"not_kept", 4}}));
  EXPECT_EQ(LeftOutOf(Kept(9, 7)), LeftOutOf(Kept(0, 0))) << "no range";
}

}  // namespace
}  // namespace sis
