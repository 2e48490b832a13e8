#include "client/cli/top_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/number_text.h"
#include "client/cli/verdict_text.h"

namespace sis {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

v1::GetStepResponse Step(uint64_t accepted, uint64_t rejected, uint64_t missing, double d) {
  v1::GetStepResponse step;
  v1::Totals& totals = *step.mutable_totals();
  totals.set_accepted(accepted);
  totals.set_rejected(rejected);
  totals.set_missing(missing);
  totals.set_d(d);
  totals.set_d_sis(d / 4);
  totals.set_expected_acceptance(static_cast<double>(accepted));
  return step;
}

v1::Run RunNamed(const std::string& id) {
  v1::Run run;
  run.set_run_id(id);
  run.set_policy_version(9);
  run.mutable_config()->set_task("sums");
  run.mutable_config()->set_model("small");
  return run;
}

std::string Text(const std::vector<std::string>& lines) { return absl::StrJoin(lines, "\n"); }

TEST(NumberTextTest, ThreeDigitsAndAUnit) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(999.6), "1 k");
  EXPECT_EQ(CountText(12345), "12.3 k");
  EXPECT_EQ(CountText(4.56e9), "4.56 G");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(1.5 * (1 << 30)), "1.5 GiB");
  EXPECT_EQ(ShareText(0.8341), "83.4%");
  EXPECT_EQ(ShareText(0.99999), "100.00%");
  EXPECT_EQ(ShareText(0.00012), "0.012%");
  EXPECT_EQ(NumberText(0.078123), "0.0781");
  EXPECT_EQ(DurationText(45), "45 s");
  EXPECT_EQ(DurationText(7200), "2.0 h");
  for (const auto& text : {CountText, BytesText, ShareText, NumberText, DurationText}) {
    EXPECT_EQ(text(std::numeric_limits<double>::quiet_NaN()), "-");
  }
}

TEST(TopFrameTest, ServersSayWhatTheyDidInTheLastSeconds) {
  v1::GetServerResponse server;
  server.set_version("1.2.3");
  server.set_ready(true);
  server.set_started_at(1000);
  server.set_cache_bytes(1 << 30);
  server.set_cache_budget_bytes(int64_t{4} << 30);
  for (const auto& [at, positions, failed] :
       {std::tuple(1000, 0, 0), {1080, 0, 1}, {1090, 5000, 1}, {1100, 30000, 3}}) {
    auto& sample = *server.add_history();
    sample.set_at(at);
    sample.set_ingested_positions(positions);
    sample.set_failed_rpcs(failed);
  }
  const std::string text =
      Text(ServerLines({server, absl::UnavailableError("connection refused")}, {"a:1", "b:2"}));
  EXPECT_THAT(text, ContainsRegex("a:1  sis_server 1.2.3  serving  for 2 min"));
  EXPECT_THAT(text, HasSubstr("cache 25.0%, 1 GiB of 4 GiB"));
  EXPECT_THAT(text, HasSubstr("recorded 2.5 k tokens/s")) << "25,000 in 10 s";
  EXPECT_THAT(text, HasSubstr("failed 0.2/s"));
  EXPECT_THAT(text, HasSubstr("b:2  no answer: connection refused"));
}

TEST(TopFrameTest, RunsHaveALineEach) {
  EXPECT_THAT(Text(RunsLines({})), HasSubstr("No runs yet"));
  v1::Run evaluated = RunNamed("evaluated");
  evaluated.set_last_draw(12);
  *evaluated.mutable_last_totals() = Step(75, 25, 100, 8).totals();
  const auto lines = RunsLines({evaluated, RunNamed("new")});
  ASSERT_EQ(lines.size(), 3);
  EXPECT_THAT(
      lines[1],
      ContainsRegex("^evaluated +- +9 +12 +75.0% +75.0% +0.08 +0.02 +50.0% .*sums, small$"));
  EXPECT_THAT(lines[2], ContainsRegex("^new +- +9 +- +- +- +- +- +- "));
}

TEST(TopFrameTest, WhatIsWrongIsSaidTheWorstFirst) {
  v1::ListRunsResponse runs;
  for (const auto& [id, verdict] : {std::pair("a", v1::HEALTHY),
                                    {"b", v1::WORTH_A_LOOK},
                                    {"c", v1::BROKEN},
                                    {"d", v1::BROKEN}}) {
    v1::Run& run = *runs.add_runs();
    run = RunNamed(id);
    run.set_verdict(verdict);
    if (verdict != v1::BROKEN) continue;
    for (const auto& [rule, found] : {std::pair("Worse", v1::BROKEN), {"Bad", v1::WORTH_A_LOOK}}) {
      v1::Finding& finding = *run.add_findings();
      finding.set_rule(rule);
      finding.set_verdict(found);
      finding.set_reason(absl::StrCat(rule, " is measured."));
      finding.set_action(absl::StrCat("Do ", rule, "."));
    }
  }
  const std::vector<v1::Run> worst_first = WorstFirst(runs);
  const auto lines = RunsLines(worst_first);
  ASSERT_EQ(lines.size(), 7);
  EXPECT_THAT(lines[1], ContainsRegex("^c +!! BROKEN +9"));
  EXPECT_EQ(lines[2], "    Worse is measured.");
  EXPECT_THAT(lines[3], ContainsRegex("^d +!! BROKEN"));
  EXPECT_THAT(lines[5], ContainsRegex("^b +! look"));
  EXPECT_THAT(lines[6], ContainsRegex("^a +healthy"));

  EXPECT_THAT(Text(RunLines(worst_first[0], {}, 2)),
              HasSubstr("!! BROKEN  Worse is measured. (Worse)\n    Do Worse.\n"
                        "! look  Bad is measured. (Bad)\n    Do Bad.\n"));
}

TEST(TopFrameTest, ARunShowsItsDrawsNewestFirst) {
  v1::ListStepsResponse steps;
  EXPECT_THAT(Text(RunLines(RunNamed("r"), steps, 2)), HasSubstr("Nothing evaluated yet"));
  for (const uint64_t draw : {7, 8, 3}) {
    v1::ListStepsResponse::Step& step = *steps.add_steps();
    step.set_draw(draw);
    *step.mutable_step() = Step(10 * draw, 100 - 10 * draw, 0, 1);
  }
  v1::CorrectionTotals& plain = *steps.mutable_steps(2)->mutable_step()->add_corrections();
  plain.set_correction("plain");
  plain.set_positions(100);
  plain.set_weight(50);
  plain.set_weight_squared(100);
  const auto lines = RunLines(RunNamed("r"), steps, 2);
  const std::string text = Text(lines);
  EXPECT_THAT(text, HasSubstr("accept rate          30.0%            ▇█▁"));
  EXPECT_THAT(text, ContainsRegex("\n +3 +100 +30.0%.*\n +8 +100 +80.0%"));
  EXPECT_THAT(text, testing::Not(ContainsRegex("\n +7 +100"))) << "two rows were asked for";
  EXPECT_THAT(text, ContainsRegex("\nplain +25.0% +0.0% +0.0% +0.5 "));
  EXPECT_THAT(lines.back(), HasSubstr("prefix_curve=(1, 2, 4, 8)")) << "nobody asked for one";
}

TEST(TopFrameTest, MissingTokensAreSplitByReason) {
  v1::ListStepsResponse steps;
  const auto add = [&](const std::map<v1::MissingReason, uint64_t>& missing, uint64_t tokens) {
    uint64_t all = 0;
    for (const auto& [reason, positions] : missing) all += positions;
    v1::GetStepResponse& step = *steps.add_steps()->mutable_step();
    step = Step(tokens - all, 0, all, 1);
    for (const auto& [reason, positions] : missing) {
      step.add_missing()->set_reason(reason);
      step.mutable_missing()->rbegin()->set_positions(positions);
    }
  };
  add({}, 50);
  EXPECT_THAT(Text(RunLines(RunNamed("r"), steps, 2)), testing::Not(HasSubstr("evicted")));
  add({{v1::NEVER_ARRIVED, 20}, {v1::EVICTED, 60}}, 200);
  add({{v1::EVICTED, 15}}, 100);
  const std::string text = Text(RunLines(RunNamed("r"), steps, 2));
  EXPECT_THAT(text, HasSubstr("missing              15.0%            ▁█▄\n"
                              "  never arrived       0.0%            ▁█▁\n"
                              "  evicted            15.0%            ▁█▅\n"));
}

TEST(TopFrameTest, ThePrefixCurveIsThatOfTheLastDrawThatHasOne) {
  v1::ListStepsResponse steps;
  for (const uint64_t draw : {4, 5, 6}) {
    steps.add_steps()->set_draw(draw);
    *steps.mutable_steps()->rbegin()->mutable_step() = Step(50, 50, 0, 1);
    if (draw == 6) continue;
    for (const uint32_t top_k : {1, 8}) {
      v1::PrefixPoint& point = *steps.mutable_steps()->rbegin()->mutable_step()->add_prefix_curve();
      point.set_top_k(top_k);
      point.set_positions(draw == 5 ? 40 : 100);
      point.set_expected_acceptance(10);
      point.set_residual_mass(20.0 / top_k);
    }
  }
  const auto lines = RunLines(RunNamed("r"), steps, 3);
  ASSERT_GT(lines.size(), 4);
  EXPECT_EQ(lines.end()[-4], "Accept rate against k, draw 5:");
  EXPECT_THAT(lines.end()[-3], ContainsRegex("^ +K EXPECTED RESIDUAL +TOKENS$"));
  EXPECT_THAT(lines.end()[-2], ContainsRegex("^ +1 +25.0% +50.0% +40$"));
  EXPECT_THAT(lines.end()[-1], ContainsRegex("^ +8 +25.0% +6.2% +40$"));
}

TEST(TopFrameTest, NothingIsWiderOrHigherThanTheScreen) {
  EXPECT_EQ(Cropped({"abc", "▁▂▃▄", "", "gone"}, 3, 3),
            (std::vector<std::string>{"abc", "▁▂▃", ""}));
}

}  // namespace
}  // namespace sis
