// Bad input of Evaluate.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/integration/bad_input.h"

namespace sis {
namespace {

using ::testing::HasSubstr;

using BadEvaluateTest = BadInputTest;

TEST_F(BadEvaluateTest, Shapes) {
  using E = v1::EvaluateRequest;
  const auto expect = [&](const std::function<void(E&)>& spoil, grpc::StatusCode code,
                          const std::vector<std::string>& parts) {
    E request = GoodEvaluate();
    spoil(request);
    ExpectStatus(request, code, parts);
  };
  const auto invalid = grpc::INVALID_ARGUMENT;
  expect([](E& e) { e.mutable_run()->set_run_id("nobody"); }, grpc::NOT_FOUND, {"'nobody'"});
  expect([](E& e) { e.mutable_run()->set_incarnation(7); }, grpc::FAILED_PRECONDITION,
         {"incarnation 1, not 7"});
  expect([](E& e) { e.clear_slices(); }, invalid, {"slices: none"});
  expect([](E& e) { e.mutable_slices(0)->set_length(0); }, invalid, {"slices[0]", "length 0"});
  expect([](E& e) { e.mutable_slices(0)->mutable_sequence()->clear_id(); }, invalid,
         {"slices[0]", "sequence.id"});
  expect([](E& e) { e.mutable_slices(0)->set_first_position(UINT32_MAX); }, invalid,
         {"slices[0]", "'good'", "first_position 4294967295"});
  expect([](E& e) { e.mutable_slices(0)->set_length(1 << 23); }, invalid, {"length 8388608"});
  expect([](E& e) { *e.add_slices() = e.slices(0); }, invalid, {"overlap at position 0", "'good'"});
  expect([](E& e) { e.set_top_k(4); }, invalid, {"top_k: 4"});
  expect([](E& e) { e.clear_form(); }, invalid, {"form"});
  expect([](E& e) { e.add_outputs(static_cast<v1::Output>(99)); }, invalid, {"outputs: 99"});
  expect([](E& e) { e.add_outputs(v1::OUTPUT_UNSPECIFIED); }, invalid, {"outputs: 0"});
  expect([](E& e) { e.set_lease_id(123); }, grpc::FAILED_PRECONDITION, {"lease 123"});
  expect([](E& e) { e.mutable_slices(0)->set_record_digest(5); }, grpc::FAILED_PRECONDITION,
         {"record_digest 5", "'good'"});
  expect([](E& e) { e.mutable_gathered()->mutable_log_probs()->pop_back(); }, invalid,
         {"gathered.log_probs: 23 bytes, not the 24"});
  expect([](E& e) { e.mutable_gathered()->clear_sampled_log_probs(); }, invalid,
         {"gathered.sampled_log_probs: 0 bytes"});
  expect(
      [](E& e) {
        e.mutable_slices(0)->set_length(3);
        e.mutable_gathered()->mutable_log_probs()->append(12, '\0');
        e.mutable_gathered()->mutable_sampled_log_probs()->append(4, '\0');
        e.add_outputs(v1::RATIOS);
      },
      grpc::FAILED_PRECONDITION, {"'good'", "position 2", "never_arrived"});
}

TEST_F(BadEvaluateTest, Values) {
  for (const float bad : {kNan, kInfinity, 0.5f}) {
    v1::EvaluateRequest request = GoodEvaluate();
    Set(request.mutable_gathered()->mutable_log_probs(), 3, bad);
    ExpectInvalid(request, {"'good'", "gathered.log_probs at position 1, slot 0"});
    request = GoodEvaluate();
    Set(request.mutable_gathered()->mutable_sampled_log_probs(), 1, bad);
    ExpectInvalid(request, {"'good'", "gathered.sampled_log_probs at position 1"});
    request = GoodReduced();
    Set(request.mutable_reduced()->mutable_sampled_log_probs(), 0, bad);
    ExpectInvalid(request, {"'good'", "reduced.sampled_log_probs at position 0"});
  }
  v1::EvaluateRequest request = GoodEvaluate();
  request.mutable_gathered()->set_log_probs(
      Bytes<float>({-0.1f, -0.2f, -0.3f, -0.25f, -2.0f, kNan}));
  ExpectInvalid(request, {"'good'", "gathered.log_probs at position 0", "sum to 2.46"});
  for (const float bad : {kNan, kInfinity}) {
    request = GoodReduced();
    Set(request.mutable_reduced()->mutable_log_envelopes(), 1, bad);
    ExpectInvalid(request, {"'good'", "reduced.log_envelopes at position 1"});
  }
  for (const float bad : {kNan, kInfinity, -0.1f, 1.1f}) {
    request = GoodReduced();
    Set(request.mutable_reduced()->mutable_covered_masses(), 1, bad);
    ExpectInvalid(request, {"'good'", "reduced.covered_masses at position 1"});
  }
}

TEST_F(BadEvaluateTest, NeedsLogProbsAtEverySlot) {
  v1::EvaluateRequest request = GoodReduced();
  request.set_total_variation(true);
  ExpectInvalid(request, {"total_variation: needs log-probs at every slot"});
  request = GoodReduced();
  request.add_prefix_curve(1);
  ExpectInvalid(request, {"prefix_curve: needs log-probs at every slot"});
}

// Values at masked and missing positions are not looked at.
TEST_F(BadEvaluateTest, RowsThatAreNotLookedAtMayHoldAnything) {
  v1::EvaluateRequest request = GoodEvaluate();
  request.mutable_slices(0)->set_length(3);  // the last one never arrived
  request.set_mask(std::string("\1\0\1", 3));
  request.set_draw(77);
  request.mutable_gathered()->set_sampled_log_probs(Bytes<float>({-0.6f, kNan, kNan}));
  request.mutable_gathered()->set_log_probs(
      Bytes<float>({-0.6f, -1.4f, -2.5f, kNan, 1.0f, kInfinity, kInfinity, kNan, 2.0f}));
  v1::EvaluateResponse response;
  const grpc::Status status = connection_.Evaluate(request, response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.totals().masked(), 1u);
  EXPECT_EQ(response.totals().missing(), 1u);
  EXPECT_EQ(response.totals().accepted() + response.totals().rejected(), 1u);
  before_ = State();  // the accepted call counted one draw more
}

}  // namespace
}  // namespace sis
