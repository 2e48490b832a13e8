#include "client/compare/run_diagnosis.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace sis {
namespace {

// Of a server that keeps, of each sequence, what lies beyond its first positions.
RunCalls Keeping(const std::vector<uint64_t>& first_positions) {
  return {.get_run = [] { return v1::Run(); },
          .inspect_run =
              [=] {
                v1::InspectRunResponse response;
                for (size_t i = 0; i < first_positions.size(); ++i) {
                  auto& sequence = *response.add_sequences();
                  sequence.mutable_sequence()->set_id(std::to_string(i));
                  sequence.set_positions(1);
                }
                return response;
              },
          .inspect_sequence =
              [=](const v1::SequenceRef& sequence) {
                v1::InspectSequenceResponse response;
                response.set_first_position(first_positions[std::stoul(sequence.id())]);
                return response;
              }};
}

TEST(RunDiagnosisTest, WhatLiesBeforeTheFirstPositionsTakesNoMoreThanItsRoom) {
  const absl::StatusOr<RunDiagnosis> diagnosis = DiagnoseRun(Keeping({1 << 16, 1 << 17, 1 << 16}));
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->sequences, (std::vector<std::string>{"0", "2"}));
  const absl::Status none = DiagnoseRun(Keeping({(1 << 17) + 1})).status();
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_TRUE(absl::StrContains(none.message(), "too far")) << none;
}

}  // namespace
}  // namespace sis
