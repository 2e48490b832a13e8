// InspectSequence returns the values that Evaluate returned, and the recorded ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "kernels/numerics/philox.h"
#include "kernels/numerics/sequence_key.h"
#include "server/cache/inspection.h"
#include "server/observe/inspection_messages.h"
#include "server/testing/evaluate_fixture.h"

namespace sis {
namespace {

template <typename T>
std::vector<T> Array(const std::string& bytes) {
  std::vector<T> array(bytes.size() / sizeof(T));
  if (!array.empty()) std::memcpy(array.data(), bytes.data(), bytes.size());
  return array;
}

// Returns the bits, because NaN must equal itself.
uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

class InspectTest : public EvaluateTest {
 protected:
  v1::InspectSequenceResponse Inspect(const std::string& id) {
    v1::InspectSequenceRequest request;
    request.mutable_sequence()->set_id(id);
    v1::InspectSequenceResponse response;
    const absl::Status status = InspectSequence(*run_, request, response);
    EXPECT_TRUE(status.ok()) << status;
    return response;
  }

  // Compares the kept values with the response, which has DECISIONS, ACCEPTANCE_PROBABILITIES and
  // perhaps LOG_RATIOS.
  void ExpectKept(const v1::EvaluateRequest& request, const v1::EvaluateResponse& answer) {
    const std::vector<float> a = Floats(answer.acceptance_probabilities());
    const std::vector<float> log_ratios = Floats(answer.log_ratios());
    const uint32_t top_k = request.top_k() == 0 ? kSlots : request.top_k();
    size_t offset = 0;
    int64_t scored = 0;
    for (const v1::Slice& slice : request.slices()) {
      const v1::InspectSequenceResponse kept = Inspect(slice.sequence().id());
      EXPECT_EQ(kept.draw(), request.draw());
      EXPECT_EQ(kept.top_k(), static_cast<uint32_t>(kSlots));
      const uint64_t key = SequenceKey(7, 0, slice.sequence().id());
      const size_t sequence = std::ranges::find(kIds, slice.sequence().id()) - kIds.begin();
      const Records& records = records_[sequence];
      const std::vector<float> kept_log_ratios = Floats(kept.log_ratios());
      const std::vector<float> kept_a = Floats(kept.acceptance_probabilities());
      const std::vector<float> log_envelopes = Floats(kept.log_envelopes());
      const std::vector<float> residual_masses = Floats(kept.residual_masses());
      const auto uniforms = Array<uint32_t>(kept.uniforms());
      const auto ids = Array<int32_t>(kept.sampled_ids());
      const auto slots = Array<int32_t>(kept.top_k_ids());
      const std::vector<float> log_probs = Floats(kept.top_k_log_probs());
      const std::vector<float> current = Floats(kept.current_log_probs());
      for (uint32_t i = 0; i < slice.length(); ++i, ++offset) {
        const uint32_t position = slice.first_position() + i;
        SCOPED_TRACE(testing::Message() << slice.sequence().id() << " " << position);
        const uint32_t at = position - kept.first_position();
        ASSERT_LT(at, kept.decisions().size());
        const auto decision = static_cast<Decision>(kept.decisions()[at]);
        ASSERT_EQ(decision, static_cast<Decision>(answer.decisions()[offset]));
        if (!IsScored(decision)) continue;
        ++scored;
        ASSERT_EQ(kept_a[at], a[offset]);
        if (!log_ratios.empty() && decision != Decision::kAccepted) {
          ASSERT_EQ(kept_log_ratios[at], log_ratios[offset]);
        }
        ASSERT_EQ(uniforms[at],
                  AcceptanceUniforms(key, position / 4, request.draw()).word[position % 4]);
        if (decision == Decision::kAccepted) {
          EXPECT_LT(uniforms[at], static_cast<uint64_t>(kept_a[at] * 0x1p32f));
        }
        ASSERT_EQ(ids[at], records.sampled_ids[position]);
        Envelope envelope{};
        EnvelopeAccumulator accumulator;
        bool told = false;
        for (int slot = 0; slot < kSlots; ++slot) {
          const size_t k = at * kSlots + slot, k0 = position * kSlots + slot;
          ASSERT_EQ(slots[k], records.ids[k0]);
          ASSERT_EQ(Bits(log_probs[k]), Bits(records.log_probs[k0]));
          if (request.has_gathered() && records.ids[k0] >= 0) {
            ASSERT_EQ(current[k], current_[sequence].log_probs[k0]);
          }
          if (request.has_reduced() || records.ids[k0] < 0) {
            ASSERT_TRUE(std::isnan(current[k]));
          } else {
            told = true;
            if (slot < static_cast<int>(top_k)) accumulator.Add(log_probs[k], current[k]);
          }
        }
        if (told) {
          envelope = accumulator.Finish();
          ASSERT_EQ(log_envelopes[at], envelope.log_envelope);
          ASSERT_EQ(residual_masses[at], ResidualMass(envelope));
        }
        // a follows from the inspected values.
        if (decision != Decision::kOutsideTopK && kept_log_ratios[at] <= log_envelopes[at]) {
          ASSERT_EQ(kept_a[at], std::isinf(kept_log_ratios[at])
                                    ? 0.0f
                                    : Exp32(Flush(kept_log_ratios[at] - log_envelopes[at])));
        }
      }
    }
    EXPECT_GT(scored, 0);
  }

  void DoAndExpectKept(const v1::EvaluateRequest& request) { ExpectKept(request, Do(request)); }
};

TEST_F(InspectTest, BothFormsWithAnyK) {
  for (int top_k = 1; top_k <= kSlots; ++top_k) {
    for (v1::EvaluateRequest request : {Request(all_), ReducedRequest(all_, top_k)}) {
      request.set_draw((request.has_reduced() ? 20 : 10) + top_k);
      request.set_top_k(top_k);
      request.add_outputs(v1::OUTPUT_LOG_RATIOS);
      DoAndExpectKept(request);
    }
  }
}

TEST_F(InspectTest, MasksAndMissingPositions) {
  v1::EvaluateRequest request = Request({{0, 100, 100}}, 7);
  // 50 positions that were never recorded.
  request.mutable_slices(0)->set_length(150);
  request.mutable_gathered()->mutable_counts()->append(50, '\0');
  request.mutable_gathered()->mutable_sampled_log_probs()->append(50 * sizeof(float), '\0');
  const v1::EvaluateRequest second = Request({{1, 0, 30}});
  *request.add_slices() = second.slices(0);
  Add(second.gathered(), *request.mutable_gathered());
  std::string mask(180, '\1');
  mask.replace(20, 30, std::string(30, '\0'));
  mask.replace(120, 5, std::string(5, '\0'));
  request.set_mask(mask);
  const v1::EvaluateResponse answer = Do(request);
  EXPECT_EQ(answer.totals().missing(), 45u);
  EXPECT_EQ(answer.totals().masked(), 35u);
  ExpectKept(request, answer);
  v1::InspectRunResponse overview;
  InspectRun(*run_, overview);
  ASSERT_EQ(overview.sequences_size(), 2);
  ExpectEqualTotals(overview.sequences(0).totals(), answer.slice_totals(0));
  EXPECT_EQ(overview.sequences(0).positions(), 150u);
}

TEST_F(InspectTest, TwoRanksAndSeveralSlicesOfASequence) {
  const v1::EvaluateRequest first = Request({{0, 0, 33}, {0, 90, 50}, {1, 7, 100}}, 8);
  const v1::EvaluateRequest second = Request({{0, 33, 57}, {0, 140, 60}, {2, 0, 200}}, 8);
  const v1::EvaluateResponse first_answer = Do(first);
  const v1::EvaluateResponse second_answer = Do(second);
  ExpectKept(first, first_answer);
  ExpectKept(second, second_answer);
  v1::InspectRunResponse overview;
  InspectRun(*run_, overview);
  ExpectEqualTotals(overview.sequences(0).totals(), Do(Request({{0, 0, 200}}, 8)).totals());
  EXPECT_EQ(overview.sequences(1).positions(), 100u);
}

TEST_F(InspectTest, DeviationsAndTokensAreThoseOfTheRecords) {
  Do(Request(all_, 9));
  v1::InspectRunResponse overview;
  InspectRun(*run_, overview);
  ASSERT_EQ(overview.deviations_size(), static_cast<int>(Inspection::kDeviationsShown));
  float last = std::numeric_limits<float>::infinity();
  for (const auto& deviation : overview.deviations()) {
    const size_t sequence = std::ranges::find(kIds, deviation.sequence().id()) - kIds.begin();
    EXPECT_EQ(static_cast<int32_t>(deviation.token_id()),
              records_[sequence].sampled_ids[deviation.position()]);
    EXPECT_EQ(deviation.log_ratio(),
              Flush(current_[sequence].sampled_log_probs[deviation.position()] -
                    records_[sequence].sampled_log_probs[deviation.position()]));
    EXPECT_LE(std::abs(deviation.log_ratio()), last);
    last = std::abs(deviation.log_ratio());
  }
  std::map<int32_t, std::pair<uint64_t, uint64_t>> exact;
  for (const std::string& id : kIds) {
    const v1::InspectSequenceResponse kept = Inspect(id);
    const auto ids = Array<int32_t>(kept.sampled_ids());
    for (size_t i = 0; i < ids.size(); ++i) {
      exact[ids[i]].first += kept.decisions()[i] == 1;
      exact[ids[i]].second += kept.decisions()[i] == 2;
    }
  }
  ASSERT_GT(overview.tokens_size(), 0);
  for (const auto& token : overview.tokens()) {
    const auto [accepted, rejected] = exact[static_cast<int32_t>(token.token_id())];
    EXPECT_GE(token.accepted(), accepted);
    EXPECT_LE(token.accepted(), accepted + token.max_error());
    EXPECT_GE(token.rejected(), rejected);
    EXPECT_LE(token.rejected(), rejected + token.max_error());
  }
}

TEST_F(InspectTest, TheAnnotationStaysAfterTheRelease) {
  const std::string annotation = [] {
    v1::Annotation it;
    it.set_prompt("2 + 2 =");
    it.set_reward(1);
    return it.SerializeAsString();
  }();
  const auto sequence = std::get<std::shared_ptr<Sequence>>(run_->Find({kIds[0], 0}));
  ASSERT_TRUE(sequence->Seal(sequence->committed_length(), annotation).ok());
  Do(Request(all_, 9));
  EXPECT_EQ(Inspect(kIds[0]).annotation().SerializeAsString(), annotation);
  EXPECT_FALSE(Inspect(kIds[1]).has_annotation());
  run_->Release({kIds[0], 0});
  EXPECT_EQ(Inspect(kIds[0]).annotation().SerializeAsString(), annotation);
}

TEST_F(InspectTest, StalenessIsCountedFromTheVersionThen) {
  const auto append = [&](uint32_t first, uint64_t version) {
    ASSERT_EQ(AppendBlock(cache_, *run_, records_[0].Block("d", first, version, first, 10)).code(),
              0);
  };
  append(0, 9);
  append(10, 0);
  ASSERT_TRUE(run_->AdvanceVersion(3).ok());
  v1::EvaluateRequest request = Request({{0, 0, 20}}, 10);
  request.mutable_slices(0)->mutable_sequence()->set_id("d");
  Do(request);
  const auto staleness = Array<int64_t>(Inspect("d").staleness());
  EXPECT_EQ(staleness[0], -6) << "ahead";
  EXPECT_EQ(staleness[10], 3);
}

TEST_F(InspectTest, MissingPositionsHaveTheirReason) {
  ASSERT_EQ(AppendBlock(cache_, *run_, records_[0].Block("d", 0, 0, 0, 3)).code(), 0);
  ASSERT_EQ(IngestEntry(cache_, *run_, GapEntry("d", 4, 2)).code(), 0);
  v1::EvaluateRequest request = Request({{0, 0, 8}}, 10);
  request.mutable_slices(0)->mutable_sequence()->set_id("d");
  request.set_mask(std::string{1, 1, 1, 1, 1, 0, 1, 1});
  const v1::EvaluateResponse answer = Do(request);
  const std::string reasons = Inspect("d").missing_reasons();
  EXPECT_EQ(
      reasons,
      (std::string{0, 0, 0, v1::MISSING_REASON_NEVER_ARRIVED, v1::MISSING_REASON_INVALID_LOG_PROB,
                   0, v1::MISSING_REASON_NEVER_ARRIVED, v1::MISSING_REASON_NEVER_ARRIVED}));
  ASSERT_EQ(answer.missing_size(), 3);
  EXPECT_EQ(answer.missing(1).reason(), v1::MISSING_REASON_INVALID_LOG_PROB);
  EXPECT_EQ(answer.missing(1).first_position(), 4);
  EXPECT_EQ(answer.missing(1).length(), 1) << "position 5 is masked";
  const auto& totals = run_->counters().totals().missing_by_reason;
  EXPECT_EQ(totals[static_cast<size_t>(MissingReason::kInvalidLogProb)], 1);
}

TEST_F(InspectTest, BadRequestsKeepNothing) {
  v1::EvaluateRequest request = Request(all_, 11);
  (*request.mutable_gathered()->mutable_sampled_log_probs())[4 * 3 * kLength - 1] = '\x7f';
  EXPECT_FALSE(Try(request).ok());
  v1::InspectRunResponse overview;
  InspectRun(*run_, overview);
  EXPECT_EQ(overview.sequences_size(), 0);
  v1::InspectSequenceRequest inspect;
  v1::InspectSequenceResponse response;
  EXPECT_EQ(InspectSequence(*run_, inspect, response).code(), absl::StatusCode::kInvalidArgument);
  inspect.mutable_sequence()->set_id("a");
  EXPECT_EQ(InspectSequence(*run_, inspect, response).code(), absl::StatusCode::kNotFound);
}

TEST_F(InspectTest, ASupersededRunLeavesNothing) {
  Do(Request(all_, 12));
  EXPECT_GT(run_->inspection().bytes(), 0);
  const std::shared_ptr<sis::Run> next = cache_.CreateRun("r", LosslessConfig(kSlots), 2);
  EXPECT_EQ(run_->inspection().bytes(), 0);
  // A call that began earlier keeps nothing either.
  (void)Try(Request(all_, 13)).ok();
  EXPECT_EQ(run_->inspection().bytes(), 0);
  v1::InspectRunResponse overview;
  InspectRun(*next, overview);
  EXPECT_EQ(overview.sequences_size(), 0);
}

}  // namespace
}  // namespace sis
