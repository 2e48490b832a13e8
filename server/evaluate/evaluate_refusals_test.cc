// Requests that Evaluate refuses: each error names the field, and none counts anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "server/testing/evaluate_fixture.h"

namespace sis {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

using EvaluateRefusalsTest = EvaluateTest;

TEST_F(EvaluateRefusalsTest, BadRequestsAreRefusedByNameAndCountNothing) {
  struct Case {
    std::vector<std::string> message;
    std::function<void(v1::EvaluateRequest&)> change;
    bool reduced = false;
  };
  const auto put = [](std::string* bytes, size_t index, float value) {
    ASSERT_LE((index + 1) * sizeof(float), bytes->size());
    std::memcpy(bytes->data() + index * sizeof(float), &value, sizeof(float));
  };
  // A position whose set is full. The request has [10, 60) of b, then c.
  uint32_t full = 20;
  while (records_[1].log_probs[full * kSlots + kSlots - 1] == kMinusInfinity) ++full;
  const uint32_t row = full - 10;
  const auto value = [&](const v1::EvaluateRequest& request, int slot) {
    return FirstValue(request.gathered(), row) + slot;
  };
  const std::string at = " at position " + std::to_string(full);
  const float infinity = HUGE_VALF;
  const Case cases[] = {
      {{"top_k: 6", "5"}, [](auto& r) { r.set_top_k(6); }},
      {{"prefix_curve[0]: 0", "[1, 5]"}, [](auto& r) { r.add_prefix_curve(0); }},
      {{"prefix_curve[1]: 2", "[3, 5]"},
       [](auto& r) {
         r.add_prefix_curve(2);
         r.add_prefix_curve(2);
       }},
      {{"prefix_curve[0]: 4", "[1, 3]"},
       [](auto& r) {
         r.set_top_k(3);
         r.add_prefix_curve(4);
       }},
      {{"prefix_curve[0]: 4294967295"}, [](auto& r) { r.add_prefix_curve(4294967295u); }},
      {{"prefix_curve: 17 points", "16"},
       [](auto& r) {
         for (int k = 1; k <= 17; ++k) r.add_prefix_curve(k);
       }},
      {{"prefix_curve: needs log-probs"}, [](auto& r) { r.add_prefix_curve(1); }, true},
      {{"total_variation: needs log-probs"}, [](auto& r) { r.set_total_variation(true); }, true},
      {{"advantages: element 3: nan, must be in [-1e+38, 1e+38]"},
       [&](auto& r) {
         r.mutable_advantages()->resize(400);
         put(r.mutable_advantages(), 3, NAN);
       }},
      {{"advantages: unset, but soft_acceptance"},
       [](auto& r) {
         r.mutable_algorithm()->mutable_soft_acceptance();
         r.add_outputs(v1::OUTPUT_SURROGATES);
       }},
      {{"outputs: 0"}, [](auto& r) { r.add_outputs(v1::OUTPUT_UNSPECIFIED); }},
      {{"outputs: 99"}, [](auto& r) { r.add_outputs(static_cast<v1::Output>(99)); }},
      {{"slices: none"}, [](auto& r) { r.clear_slices(); }},
      {{"slices[1].sequence.id: 0 bytes"}, [](auto& r) { r.mutable_slices(1)->clear_sequence(); }},
      {{"slices[1] of sequence 'c' attempt 0: length 0"},
       [](auto& r) { r.mutable_slices(1)->set_length(0); }},
      {{"slices[1] of sequence 'c'", "4194300 + length 50", "4194304"},
       [](auto& r) { r.mutable_slices(1)->set_first_position(4194300); }},
      {{"slices overlap at position 59 of sequence 'b' attempt 0"},
       [](auto& r) {
         *r.mutable_slices(1) = r.slices(0);
         r.mutable_slices(1)->set_first_position(59);
       }},
      {{"slices overlap"}, [](auto& r) { *r.mutable_slices(1) = r.slices(0); }},
      {{"form: none is set"}, [](auto& r) { r.clear_form(); }},
      {{"gathered.counts: 99 bytes, not the 100"},
       [](auto& r) { r.mutable_gathered()->mutable_counts()->pop_back(); }},
      {{"gathered.counts: 0 bytes"}, [](auto& r) { r.mutable_gathered()->clear_counts(); }},
      {{"gathered.counts: element 3: 255, above the run's top_k 5"},
       [](auto& r) { (*r.mutable_gathered()->mutable_counts())[3] = '\xff'; }},
      {{"gathered.log_probs: 4 bytes"},
       [](auto& r) { r.mutable_gathered()->mutable_log_probs()->resize(4); }},
      {{"gathered.log_probs: "},
       [](auto& r) { r.mutable_gathered()->mutable_log_probs()->append(4, 'x'); }},
      {{"gathered.sampled_log_probs: 404 bytes", "400"},
       [](auto& r) { r.mutable_gathered()->mutable_sampled_log_probs()->resize(404); }},
      {{"reduced.sampled_log_probs: 0 bytes"},
       [](auto& r) { r.mutable_reduced()->clear_sampled_log_probs(); },
       true},
      {{"reduced.log_envelopes: 0 bytes"},
       [](auto& r) { r.mutable_reduced()->clear_log_envelopes(); },
       true},
      {{"reduced.covered_masses: 1 bytes"},
       [](auto& r) { r.mutable_reduced()->set_covered_masses("x"); },
       true},
      {{"sequence 'b' attempt 0: gathered.sampled_log_probs" + at, "nan"},
       [&](auto& r) { put(r.mutable_gathered()->mutable_sampled_log_probs(), row, NAN); }},
      {{"gathered.sampled_log_probs" + at, "inf"},
       [&](auto& r) { put(r.mutable_gathered()->mutable_sampled_log_probs(), row, infinity); }},
      {{"gathered.sampled_log_probs" + at, "0.02"},
       [&](auto& r) { put(r.mutable_gathered()->mutable_sampled_log_probs(), row, 0.02f); }},
      {{"gathered.log_probs" + at + ", slot 3", "nan"},
       [&](auto& r) { put(r.mutable_gathered()->mutable_log_probs(), value(r, 3), NAN); }},
      {{"gathered.log_probs" + at + ", slot 3", "0.5"},
       [&](auto& r) { put(r.mutable_gathered()->mutable_log_probs(), value(r, 3), 0.5f); }},
      {{"gathered.log_probs" + at, "sum to"},
       [&](auto& r) {
         for (int slot = 0; slot < 2; ++slot) {
           put(r.mutable_gathered()->mutable_log_probs(), value(r, slot), -0.1f);
         }
       }},
      {{"reduced.sampled_log_probs" + at, "nan"},
       [&](auto& r) { put(r.mutable_reduced()->mutable_sampled_log_probs(), row, NAN); },
       true},
      {{"reduced.log_envelopes" + at, "nan"},
       [&](auto& r) { put(r.mutable_reduced()->mutable_log_envelopes(), row, NAN); },
       true},
      {{"reduced.log_envelopes" + at, "inf"},
       [&](auto& r) { put(r.mutable_reduced()->mutable_log_envelopes(), row, infinity); },
       true},
      {{"reduced.covered_masses" + at, "nan"},
       [&](auto& r) { put(r.mutable_reduced()->mutable_covered_masses(), row, NAN); },
       true},
      {{"reduced.covered_masses" + at, "-0.1"},
       [&](auto& r) { put(r.mutable_reduced()->mutable_covered_masses(), row, -0.1f); },
       true},
      {{"reduced.covered_masses" + at, "1.02"},
       [&](auto& r) { put(r.mutable_reduced()->mutable_covered_masses(), row, 1.02f); },
       true},
      {{"keep_seconds: out of range, got 3601; must be in [0, 3600]"},
       [](auto& r) { r.set_keep_seconds(3601); }},
  };
  const std::vector<NamedRange> ranges = {{1, 10, 50}, {2, 10, 50}};
  for (const Case& c : cases) {
    v1::EvaluateRequest request = c.reduced ? ReducedRequest(ranges, kSlots) : Request(ranges);
    c.change(request);
    const absl::Status status = Try(request).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.message[0];
    for (const std::string& part : c.message) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
    EXPECT_FALSE(run_->steps().Find(1).has_value()) << c.message[0];
  }
  EXPECT_TRUE(Try(Request(ranges)).ok()) << "unchanged, it is good";
  EXPECT_TRUE(Try(ReducedRequest(ranges, kSlots)).ok());
}

TEST_F(EvaluateRefusalsTest, TooManyPositionsAreRefused) {
  Limits limits;
  limits.max_evaluate_positions = 100;
  Cache cache(1 << 24, limits);
  const auto run = cache.CreateRun("r", LosslessConfig(kSlots));
  EXPECT_TRUE(EvaluateAtOnce(*run, backend_, Request({{0, 0, 60}, {1, 0, 40}})).ok());
  const absl::Status status =
      EvaluateAtOnce(*run, backend_, Request({{0, 0, 60}, {1, 0, 41}})).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "slices: 101 positions in all, more than 100");
}

}  // namespace
}  // namespace sis
