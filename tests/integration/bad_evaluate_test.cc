// Bad input of Evaluate, in messages and in shared memory.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/integration/bad_input.h"

namespace sis {
namespace {

using ::testing::HasSubstr;

class BadEvaluateTest : public BadInputTest, public testing::WithParamInterface<ArraysIn> {
 protected:
  BadEvaluateTest() : BadInputTest(GetParam()) {}
};

INSTANTIATE_TEST_SUITE_P(, BadEvaluateTest, EitherWay(), NameOfWay);

TEST_P(BadEvaluateTest, Shapes) {
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

TEST_P(BadEvaluateTest, Values) {
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

TEST_P(BadEvaluateTest, TopKSets) {
  using Form = v1::TopK;
  const auto expect = [&](const std::function<void(Form&)>& spoil,
                          const std::vector<std::string>& parts) {
    v1::EvaluateRequest request = GoodTopKSet();
    spoil(*request.mutable_top_k_set());
    ExpectInvalid(request, parts);
  };
  const auto ids = [](Form& form) { return form.mutable_ids(); };
  const auto log_probs = [](Form& form) { return form.mutable_log_probs(); };
  expect([](Form& f) { f.set_top_k(0); }, {"top_k_set.top_k: 0 is not in [1, 128]"});
  expect([](Form& f) { f.set_top_k(129); }, {"top_k_set.top_k: 129 is not in [1, 128]"});
  expect([](Form& f) { f.set_top_k(1); }, {"top_k_set.ids: 16 bytes, not the 8"});
  expect([&](Form& f) { log_probs(f)->pop_back(); }, {"top_k_set.log_probs: 15 bytes"});
  expect([](Form& f) { f.clear_sampled_log_probs(); }, {"top_k_set.sampled_log_probs: 0 bytes"});
  expect([&](Form& f) { Set(ids(f), 2, 10); },
         {"'good'", "top_k_set.ids at position 1, slot 0: 10 is neither"});
  expect([&](Form& f) { Set(ids(f), 3, 3); }, {"'good'", "position 1, slot 1: id 3 stands twice"});
  expect([&](Form& f) { Set(ids(f), 1, 5); },
         {"'good'", "top_k_set.log_probs at position 0, slot 1: -inf is not a finite"});
  expect([&](Form& f) { Set(log_probs(f), 3, -0.9f); }, {"position 1, slot 1", "not sorted"});
  expect([&](Form& f) { Set(log_probs(f), 2, -0.1f), Set(log_probs(f), 3, -0.1f); },
         {"top_k_set.log_probs at position 1", "sum to 1.8"});
  expect([&](Form& f) { Set(ids(f), 0, -1), Set(log_probs(f), 0, -kInfinity); },
         {"top_k_set.ids at position 0, slot 0: -1: the set is empty"});
  for (const float bad : {kNan, kInfinity, 0.5f}) {
    expect([&](Form& f) { Set(log_probs(f), 2, bad); }, {"top_k_set.log_probs at position 1"});
    expect([&](Form& f) { Set(f.mutable_sampled_log_probs(), 1, bad); },
           {"'good'", "top_k_set.sampled_log_probs at position 1"});
  }
  v1::EvaluateRequest request = GoodTopKSet();
  request.set_total_variation(true);
  ExpectInvalid(request, {"total_variation: needs log-probs at every slot"});
  request = GoodTopKSet();
  request.add_prefix_curve(1);
  ExpectInvalid(request, {"prefix_curve: needs log-probs at every slot"});
}

TEST_P(BadEvaluateTest, Dense) {
  v1::EvaluateRequest good = GoodEvaluate();
  good.mutable_dense()->set_logits(Bytes(std::vector<float>(2 * kVocabulary, 0.5f)));
  good.mutable_dense()->set_sampled_ids(Bytes<int32_t>({4, 9}));
  const auto expect = [&](const std::function<void(v1::EvaluateRequest&)>& spoil,
                          const std::vector<std::string>& parts) {
    v1::EvaluateRequest request = good;
    spoil(request);
    ExpectInvalid(request, parts);
  };
  using E = v1::EvaluateRequest;
  expect([](E& e) { e.mutable_dense()->mutable_logits()->pop_back(); },
         {"dense.logits: 79 bytes, not the 80 of 20 elements"});
  expect([](E& e) { e.mutable_dense()->set_values(v1::Dense::BFLOAT16_LOGITS); },
         {"dense.logits: 80 bytes, not the 40"});
  expect([](E& e) { e.mutable_dense()->set_values(static_cast<v1::Dense::Values>(7)); },
         {"dense.values: 7"});
  expect([](E& e) { e.mutable_dense()->mutable_sampled_ids()->pop_back(); },
         {"dense.sampled_ids: 7 bytes, not the 8"});
  for (const float bad : {kNan, kInfinity}) {
    expect([&](E& e) { Set(e.mutable_dense()->mutable_logits(), 13, bad); },
           {"'good'", "dense.logits at position 1, vocabulary id 3"});
  }
  expect(
      [](E& e) {
        for (int v = 0; v < kVocabulary; ++v)
          Set(e.mutable_dense()->mutable_logits(), v, -kInfinity);
      },
      {"'good'", "dense.logits at position 0: all are -inf"});
  for (const float huge : {3e38f, -3e38f}) {
    expect(
        [&](E& e) {
          for (int v = 0; v < kVocabulary; ++v) Set(e.mutable_dense()->mutable_logits(), v, huge);
        },
        {"'good'", "dense.logits at position 0: the log-sum-exp ", "is beyond 2^40"});
  }
  good.mutable_dense()->set_sampled_ids(Bytes<int32_t>({4, 8}));
  ExpectStatus(good, grpc::FAILED_PRECONDITION,
               {"'good'", "dense.sampled_ids at position 1: 8, but token 9 is recorded"});
}

// Values at masked and missing positions are not looked at.
TEST_P(BadEvaluateTest, RowsThatAreNotLookedAtMayHoldAnything) {
  v1::EvaluateRequest request = GoodTopKSet();
  request.mutable_slices(0)->set_length(3);  // the last one never arrived
  request.set_mask(std::string("\1\0\1", 3));
  request.set_draw(77);
  v1::TopK& form = *request.mutable_top_k_set();
  form.set_sampled_log_probs(Bytes<float>({-0.6f, kNan, kNan}));
  form.set_ids(Bytes<int32_t>({4, -1, -7, -7, 3, 3}));
  form.set_log_probs(Bytes<float>({-0.6f, -kInfinity, kNan, 1.0f, kInfinity, kNan}));
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
