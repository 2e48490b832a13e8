// Ragged GATHERED values: byte for byte what the padded ones give, on every backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "kernels/decide/simd_backend.h"
#include "server/evaluate/inspection_messages.h"
#include "server/testing/evaluate_fixture.h"

namespace sis {
namespace {

using testing::HasSubstr;

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The parameter is the mass target of the run; 0: none.
class RaggedEvaluateTest : public EvaluateTest, public testing::WithParamInterface<double> {
 protected:
  RaggedEvaluateTest() {
    v1::RunConfig config = LosslessConfig(kSlots);
    config.set_mass(GetParam());
    cut_ = cache_.CreateRun("cut", config);
    Fill(*cut_);
    for (const Records& records : records_) {
      for (uint32_t i = 0; i < kLength; ++i) counts_.push_back(CountOf(records, i));
    }
  }
  void Fill(const sis::Run& run) {
    // With a gap.
    AppendBlock(cache_, run, records_[0].Block("a", 0, 0, 0, 100));
    AppendBlock(cache_, run, records_[0].Block("a", 110, 0, 110, kLength - 110));
    AppendBlock(cache_, run, records_[1].Block("b"));
  }
  // As the server cuts: a prefix whose mass reaches the target.
  uint16_t CountOf(const Records& records, uint32_t i) const {
    float mass = 0;
    uint16_t count = 0;
    while (count < kSlots && records.log_probs[i * kSlots + count] != kMinusInfinity) {
      mass = mass + Exp32(records.log_probs[i * kSlots + count++]);
      if (GetParam() > 0 && static_cast<double>(mass) >= GetParam()) break;
    }
    return count;
  }
  static bool Missing(size_t i) { return (i >= 100 && i < 110) || i >= 2 * kLength; }

  // Without values of slots that are not used; where there is no record, of any number.
  v1::EvaluateRequest Ragged(v1::EvaluateRequest request) const {
    v1::Gathered& gathered = *request.mutable_gathered();
    const size_t width = sizeof(float);
    std::vector<uint16_t> counts = counts_;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (Missing(i)) counts[i] = static_cast<uint16_t>(i % (kSlots + 1));
      if (!request.mask().empty() && request.mask()[i] == 0) counts[i] = 2;
    }
    std::string values;
    for (size_t i = 0; i < counts.size(); ++i) {
      values += gathered.log_probs().substr(i * kSlots * width, counts[i] * width);
    }
    gathered.set_log_probs(values);
    gathered.set_top_k_counts(Bytes(counts));
    return request;
  }
  std::string Answer(const Backend& backend, const v1::EvaluateRequest& request) {
    // Each time counts anew, and the one before makes room for what is inspected.
    if (last_ != nullptr) cache_.registry.Delete(last_->id(), last_->incarnation());
    last_ = cache_.CreateRun("fresh" + std::to_string(runs_++), [&] {
      v1::RunConfig config = LosslessConfig(kSlots);
      config.set_mass(GetParam());
      return config;
    }());
    Fill(*last_);
    absl::StatusOr<v1::EvaluateResponse> response = EvaluateAtOnce(*last_, backend, request);
    EXPECT_TRUE(response.ok()) << response.status();
    if (!response.ok()) return "";
    EXPECT_GT(response->totals().accepted(), 0);
    EXPECT_EQ(response->totals().missing() > 0, true);
    const auto step = last_->steps().Find(request.draw());
    return response->SerializeAsString() + ToTotals(step->evaluated.sums).SerializeAsString();
  }
  // What is kept of single positions of the last answer.
  std::string Inspected() {
    std::string kept;
    for (const std::string& id : kIds) {
      v1::InspectSequenceRequest request;
      request.mutable_sequence()->set_id(id);
      v1::InspectSequenceResponse response;
      EXPECT_TRUE(InspectSequence(*last_, request, response).ok());
      EXPECT_EQ(response.decisions().size(), kLength);
      kept += response.SerializeAsString();
    }
    return kept;
  }
  absl::Status Refusal(const v1::EvaluateRequest& request) {
    return EvaluateAtOnce(*cut_, backend_, request).status();
  }

  std::shared_ptr<sis::Run> cut_;
  std::shared_ptr<sis::Run> last_;  // that answered
  std::vector<uint16_t> counts_;    // of all positions
  int runs_ = 0;
};

TEST_P(RaggedEvaluateTest, IsThePaddedFormByteForByteOnEveryBackend) {
  std::vector<SimdBackend> vectors = SimdBackend::ForEveryTarget();
  std::vector<const Backend*> backends = {&backend_};
  for (const SimdBackend& backend : vectors) backends.push_back(&backend);
  for (const int top_k : {0, 2}) {
    for (const bool more : {false, true}) {
      v1::EvaluateRequest request = Request(all_, 5);
      request.set_top_k(top_k);
      if (more) {
        request.set_total_variation(true);
        request.add_prefix_curve(1);
        request.add_prefix_curve(2);
        std::string mask(3 * kLength, 1);
        for (size_t i = 0; i < mask.size(); i += 7) mask[i] = 0;
        request.set_mask(mask);
        request.set_own_log_probs(Bytes(std::vector<float>(3 * kLength, -1.5f)));
        request.set_advantages(Bytes(std::vector<float>(3 * kLength, 0.5f)));
        request.mutable_algorithm()->mutable_grpo();
        for (const v1::Output output : {v1::LOG_RATIOS, v1::RATIOS, v1::COEFFICIENTS}) {
          request.add_outputs(output);
        }
      }
      const std::string expected = Answer(backend_, request);
      for (const Backend* backend : backends) {
        EXPECT_TRUE(Answer(*backend, Ragged(request)) == expected)
            << backend->name() << " " << top_k << " " << more;
      }
    }
  }
}

TEST_P(RaggedEvaluateTest, WithThreePoliciesToo) {
  v1::EvaluateRequest request = Request(all_, 5);
  request.mutable_decoupled()->set_current_log_probs(
      Bytes(std::vector<float>(3 * kLength, -1.25f)));
  request.set_own_log_probs(Bytes(std::vector<float>(3 * kLength, -1.5f)));
  request.mutable_algorithm()->mutable_grpo();
  request.set_advantages(Bytes(std::vector<float>(3 * kLength, 0.5f)));
  request.add_outputs(v1::COEFFICIENTS);
  const std::string expected = Answer(backend_, request);
  EXPECT_TRUE(Answer(backend_, Ragged(request)) == expected);
}

// Whoever reads the rows once more, in whatever values they came, must leave out unused slots.
TEST_P(RaggedEvaluateTest, WhateverElseIsAskedFor) {
  const std::vector<std::function<void(v1::EvaluateRequest&)>> changes = {
      [](auto& request) { request.set_weight(v1::EXPECTED); },
      [](auto& request) {
        v1::ObservedCorrection& sis = *request.add_observe();
        sis.set_name("sis");
        sis.mutable_sis()->set_weight(v1::EXPECTED);
        v1::ObservedCorrection& dppo = *request.add_observe();
        dppo.set_name("dppo");
        dppo.mutable_algorithm()->mutable_dppo_top_k()->set_threshold(0.02f);
        request.set_advantages(Bytes(std::vector<float>(3 * kLength, 0.5f)));
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    v1::EvaluateRequest request = Request(all_, 5);
    changes[i](request);
    const std::string expected = Answer(backend_, request);
    const std::string inspected = Inspected();
    const v1::EvaluateRequest ragged = Ragged(request);
    EXPECT_TRUE(Answer(backend_, ragged) == expected) << i;
    EXPECT_TRUE(Inspected() == inspected) << i;
  }
}

TEST_P(RaggedEvaluateTest, CountsMustBeThoseOfTheRecord) {
  for (const size_t i : {size_t{0}, size_t{65}, size_t{kLength - 1}, size_t{kLength + 3}}) {
    for (const int step : {-1, 1}) {
      const int wrong = counts_[i] + step;
      if (wrong < 0 || wrong > kSlots) continue;
      std::vector<uint16_t> counts = counts_;
      std::swap(counts, counts_);
      counts_[i] = static_cast<uint16_t>(wrong);
      const v1::EvaluateRequest request = Ragged(Request(all_, 5));
      counts_ = counts;
      const absl::Status status = Refusal(request);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("gathered.top_k_counts: position ", i % kLength, ": ",
                                         wrong, ", but the record has ", counts_[i])));
      EXPECT_THAT(std::string(status.message()), HasSubstr(kIds[i / kLength]));
    }
  }
  EXPECT_FALSE(cut_->steps().Find(5).has_value()) << "nothing is counted";
}

TEST_P(RaggedEvaluateTest, SizesMustAgree) {
  const auto refused = [&](const std::string& message, auto change) {
    v1::EvaluateRequest request = Ragged(Request(all_, 5));
    change(*request.mutable_gathered());
    const absl::Status status = Refusal(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  refused("gathered.log_probs: ", [](auto& g) { g.mutable_log_probs()->resize(4); });
  refused("gathered.log_probs: ", [](auto& g) { g.mutable_log_probs()->append(4, 'x'); });
  refused("gathered.top_k_counts: ", [](auto& g) { g.mutable_top_k_counts()->pop_back(); });
  refused("gathered.top_k_counts: ", [](auto& g) { g.mutable_top_k_counts()->resize(2); });
  refused("gathered.top_k_counts: element 3: 65535, above the run's top_k 5",
          [](auto& g) { g.mutable_top_k_counts()->replace(6, 2, "\xff\xff"); });
}

INSTANTIATE_TEST_SUITE_P(Masses, RaggedEvaluateTest, testing::Values(0.0, 0.9));

}  // namespace
}  // namespace sis
