// The C++ client cuts large batches into micro-batches, and gives what one call would have given.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/api/client.h"
#include "server/testing/live_server.h"
#include "tests/integration/recorded_sequences.h"

namespace sis {
namespace {

class CppClientTest : public testing::Test {
 protected:
  // All sequences, as arrays.
  struct Arrays {
    std::vector<Slice> slices;
    std::vector<float> log_probs, sampled, envelopes, masses;
  };
  Arrays AllArrays() const {
    Arrays arrays;
    for (const NamedSequence& sequence : sequences_) {
      const uint32_t length = sequence.records.size();
      arrays.slices.push_back({{sequence.id}, 0, length});
      const CurrentValues& current = sequence.current;
      arrays.log_probs.insert(arrays.log_probs.end(), current.log_probs.begin(),
                              current.log_probs.end());
      arrays.sampled.insert(arrays.sampled.end(), current.sampled_log_probs.begin(),
                            current.sampled_log_probs.end());
      const v1::Reduced reduced = current.Reduced(sequence.records, kSlots, 0, length);
      for (const float value : Values<float>(reduced.log_envelopes())) {
        arrays.envelopes.push_back(value);
      }
      for (const float value : Values<float>(reduced.covered_masses())) {
        arrays.masses.push_back(value);
      }
    }
    return arrays;
  }

  std::unique_ptr<Client> Connect(size_t micro_batch_bytes) {
    auto client = Client::Connect(live_.grpc_address(), {.micro_batch_bytes = micro_batch_bytes});
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  LiveServer live_;
  const std::vector<NamedSequence> sequences_ = SequencesOfSeveralLengths();
};

void ExpectSame(const Evaluation& got, const Evaluation& expected) {
  EXPECT_EQ(got.accept_bits, expected.accept_bits);
  EXPECT_EQ(got.decisions, expected.decisions);
  EXPECT_EQ(got.acceptance_probabilities, expected.acceptance_probabilities);
  EXPECT_EQ(got.ratios, expected.ratios);
  EXPECT_EQ(got.log_ratios, expected.log_ratios);
  EXPECT_EQ(got.surrogates, expected.surrogates);
  EXPECT_EQ(got.coefficients, expected.coefficients);
  ASSERT_EQ(got.log_ratio_sums.size(), expected.log_ratio_sums.size());
  for (size_t i = 0; i < got.log_ratio_sums.size(); ++i) {
    EXPECT_EQ(got.log_ratio_sums[i].log_ratio, expected.log_ratio_sums[i].log_ratio);
    EXPECT_EQ(got.log_ratio_sums[i].positions, expected.log_ratio_sums[i].positions);
  }
  EXPECT_EQ(got.totals.SerializeAsString(), expected.totals.SerializeAsString());
  ASSERT_EQ(got.slice_totals.size(), expected.slice_totals.size());
  for (size_t i = 0; i < got.slice_totals.size(); ++i) {
    EXPECT_EQ(got.slice_totals[i].SerializeAsString(),
              expected.slice_totals[i].SerializeAsString());
  }
  ASSERT_EQ(got.missing.size(), expected.missing.size());
  for (size_t i = 0; i < got.missing.size(); ++i) {
    EXPECT_EQ(got.missing[i].SerializeAsString(), expected.missing[i].SerializeAsString());
  }
  ASSERT_EQ(got.prefix_curve.size(), expected.prefix_curve.size());
  for (size_t i = 0; i < got.prefix_curve.size(); ++i) {
    EXPECT_EQ(got.prefix_curve[i].SerializeAsString(),
              expected.prefix_curve[i].SerializeAsString());
  }
  EXPECT_EQ(got.newly_counted, expected.newly_counted);
}

TEST_F(CppClientTest, MicroBatchesGiveWhatOneCallGives) {
  const Arrays arrays = AllArrays();
  const GatheredValues gathered{arrays.log_probs, arrays.sampled};
  const ReducedValues reduced{arrays.sampled, arrays.envelopes, arrays.masses};
  const EvaluateOptions options{
      .draw = 3, .outputs = {v1::ACCEPT_BITS, v1::DECISIONS, v1::ACCEPTANCE_PROBABILITIES}};
  EvaluateOptions gathered_options = options;
  gathered_options.prefix_curve = {1, 3, 6};
  gathered_options.total_variation = true;
  const auto client = Connect(/*micro_batch_bytes=*/1 << 30);
  MakeRun(live_, "once-gathered", sequences_);
  MakeRun(live_, "once-reduced", sequences_);
  const auto once = client->Evaluate({"once-gathered"}, arrays.slices, gathered, gathered_options);
  const auto once_reduced = client->Evaluate({"once-reduced"}, arrays.slices, reduced, options);
  ASSERT_TRUE(once.ok()) << once.status();
  ASSERT_TRUE(once_reduced.ok()) << once_reduced.status();
  ASSERT_EQ(once->missing.size(), 1);
  ASSERT_EQ(once->prefix_curve.size(), 3);
  for (const size_t bytes : {1, 1000, 3000, 10000}) {
    const auto cut = Connect(bytes);
    const std::string run = absl::StrCat(bytes);
    MakeRun(live_, run + "g", sequences_);
    MakeRun(live_, run + "r", sequences_);
    const auto cut_up = cut->Evaluate({run + "g"}, arrays.slices, gathered, gathered_options);
    ASSERT_TRUE(cut_up.ok()) << cut_up.status();
    ExpectSame(*cut_up, *once);
    const auto cut_reduced = cut->Evaluate({run + "r"}, arrays.slices, reduced, options);
    ASSERT_TRUE(cut_reduced.ok()) << cut_reduced.status();
    ExpectSame(*cut_reduced, *once_reduced);
  }
}

TEST_F(CppClientTest, AnErrorIsTheServersAndTheClientGoesOn) {
  Arrays arrays = AllArrays();
  MakeRun(live_, "run", sequences_);
  const auto client = Connect(1000);
  const float good = std::exchange(arrays.sampled[150], 0.5f);  // in the third sequence
  const GatheredValues current{arrays.log_probs, arrays.sampled};
  for (int round = 0; round < 3; ++round) {
    const auto refused = client->Evaluate({"run"}, arrays.slices, current, {.draw = 1});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("'s2'"), absl::string_view::npos) << refused.status();
  }
  arrays.sampled[150] = good;
  const auto evaluation = client->Evaluate({"run"}, arrays.slices, current, {.draw = 1});
  EXPECT_TRUE(evaluation.ok()) << evaluation.status();
}

// A server that takes no more positions in one request than the longest sequence has, so that the
// whole batch needs several requests.
class OptionsTest : public CppClientTest {
 protected:
  OptionsTest() : limited_(Limited()) {
    MakeRun(live_, "run", sequences_);
    MakeRun(limited_, "run", sequences_);
    for (const NamedSequence& sequence : sequences_) {
      sampled_ids_.insert(sampled_ids_.end(), sequence.records.sampled_ids.begin(),
                          sequence.records.sampled_ids.end());
    }
    for (size_t i = 0; i < arrays_.sampled.size(); ++i) {
      const auto x = static_cast<float>(i % 17);
      mask_.push_back(i % 5 != 3);
      own_.push_back(-0.1f * x);
      decoupled_.push_back(arrays_.sampled[i] * (1 + 0.01f * x));
      advantages_.push_back(x - 8);
    }
  }

  static ServerOptions Limited() {
    ServerOptions options = LiveServer::Options();
    options.limits.max_evaluate_positions = 333;
    return options;
  }

  // One server gets the batch in one request; for the other a client cuts it into small ones.
  template <typename Current>
  void ExpectTheSameCutUp(const Current& current, EvaluateOptions options,
                          std::span<const Slice> slices) {
    options.draw = ++draw_;
    const auto whole =
        Client::Connect(live_.grpc_address(), {.micro_batch_bytes = size_t{1} << 30});
    const auto cut = Client::Connect(limited_.grpc_address(), {.micro_batch_bytes = 3000});
    ASSERT_TRUE(whole.ok() && cut.ok());
    const auto expected = (*whole)->Evaluate({"run"}, slices, current, options);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const auto got = (*cut)->Evaluate({"run"}, slices, current, options);
    ASSERT_TRUE(got.ok()) << got.status();
    ExpectSame(*got, *expected);
  }

  // Every option that has a value per position, and every output.
  EvaluateOptions Everything(const v1::Algorithm& algorithm) const {
    return {.outputs = {v1::ACCEPT_BITS, v1::DECISIONS, v1::RATIOS, v1::LOG_RATIOS,
                        v1::ACCEPTANCE_PROBABILITIES, v1::SURROGATES, v1::COEFFICIENTS},
            .mask = mask_,
            .own_log_probs = own_,
            .algorithm = algorithm,
            .advantages = advantages_,
            .sampled_ids = sampled_ids_};
  }

  LiveServer limited_;
  const Arrays arrays_ = AllArrays();
  const GatheredValues gathered_{arrays_.log_probs, arrays_.sampled};
  std::vector<int32_t> sampled_ids_;
  std::vector<uint8_t> mask_;
  std::vector<float> own_, decoupled_, advantages_;
  uint64_t draw_ = 0;
};

TEST_F(OptionsTest, WhatIsOfEveryPositionIsCutUpWithIt) {
  v1::Algorithm algorithm;
  algorithm.mutable_dapo();
  EvaluateOptions options = Everything(algorithm);
  ExpectTheSameCutUp(gathered_, options, arrays_.slices);
  ExpectTheSameCutUp(ReducedValues{arrays_.sampled, arrays_.envelopes, arrays_.masses}, options,
                     arrays_.slices);
  options.decoupled_log_probs = decoupled_;
  ExpectTheSameCutUp(gathered_, options, arrays_.slices);
  algorithm.mutable_dppo_top_k();
  ExpectTheSameCutUp(gathered_, Everything(algorithm), arrays_.slices);
}

TEST_F(OptionsTest, GspoIsCutUpWhereItsSumsAllow) {
  v1::Algorithm gspo;
  gspo.mutable_gspo();
  ExpectTheSameCutUp(gathered_, Everything(gspo), arrays_.slices);

  std::vector<Slice> halves;
  for (const Slice& slice : arrays_.slices) {
    if (slice.length < 2) {
      halves.push_back(slice);
      continue;
    }
    const uint32_t half = slice.length / 2;
    halves.push_back({slice.sequence, 0, half});
    halves.push_back({slice.sequence, half, slice.length - half});
  }
  EvaluateOptions options = Everything(gspo);
  for (size_t i = 0; i < halves.size(); ++i) {
    options.log_ratio_sums.push_back(
        {static_cast<int64_t>(i << 20), static_cast<int64_t>(halves[i].length)});
  }
  ExpectTheSameCutUp(gathered_, options, halves);
  EXPECT_FALSE(options.needs_one_request(halves));
  options.log_ratio_sums.clear();
  EXPECT_TRUE(options.needs_one_request(halves));
}

TEST_F(OptionsTest, WhatDependsOnTheWholeBatchStaysInOneRequest) {
  v1::Algorithm clip_cov;
  clip_cov.mutable_clip_cov();
  const auto client = Client::Connect(limited_.grpc_address(), {.micro_batch_bytes = 3000});
  ASSERT_TRUE(client.ok());
  const auto refused =
      (*client)->Evaluate({"run"}, arrays_.slices, gathered_, Everything(clip_cov));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("883 positions"), absl::string_view::npos)
      << refused.status();
}

TEST_F(OptionsTest, ArraysOfTheWrongLengthAreRefusedWhole) {
  v1::Algorithm dapo;
  dapo.mutable_dapo();
  EvaluateOptions options = Everything(dapo);
  options.advantages = options.advantages.first(500);
  const auto client = Connect(3000);
  const auto refused = client->Evaluate({"run"}, arrays_.slices, gathered_, options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("advantages"), absl::string_view::npos)
      << refused.status();
}

}  // namespace
}  // namespace sis
