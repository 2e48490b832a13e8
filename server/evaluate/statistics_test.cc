// Statistics of an Evaluate: counts, sums, and observed corrections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/evaluate/parse_algorithm.h"
#include "server/testing/evaluate_fixture.h"

namespace sis {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

class StatisticsTest : public EvaluateTest {
 protected:
  StatisticsTest() {
    for (size_t i = 0; i < 3 * kLength; ++i) {
      advantages_.push_back(std::sin(static_cast<float>(i)) * static_cast<float>(i % 5));
    }
  }

  // Returns the step's message without its times.
  v1::GetStepResponse StepOf(const sis::Run& run, uint64_t draw) {
    const auto step = const_cast<sis::Run&>(run).steps().Find(draw);
    EXPECT_TRUE(step.has_value());
    v1::GetStepResponse message = step.has_value() ? ToMessage(*step) : v1::GetStepResponse();
    message.clear_begun_at();
    message.clear_ended_at();
    return message;
  }
  void SetAdvantages(const std::vector<NamedRange>& ranges, v1::EvaluateRequest& request) const {
    for (const NamedRange& range : ranges) {
      for (uint32_t i = 0; i < range.count; ++i) {
        const float advantage = advantages_[range.sequence * kLength + range.first + i];
        request.mutable_advantages()->append(reinterpret_cast<const char*>(&advantage),
                                             sizeof advantage);
      }
    }
  }
  static v1::ObservedCorrection& Observe(const std::string& name, v1::EvaluateRequest& request) {
    v1::ObservedCorrection& observed = *request.add_observe();
    observed.set_name(name);
    return observed;
  }
  // Observes a correction of each kind.
  static void ObserveAll(v1::EvaluateRequest& request) {
    Observe("sis_2", request).mutable_sis()->set_top_k(2);
    Observe("expected", request).mutable_sis()->set_weight(v1::WEIGHT_EXPECTED);
    Observe("tis", request).mutable_algorithm()->mutable_tis();
    Observe("ice_pop", request).mutable_algorithm()->mutable_ice_pop();
    Observe("grpo", request).mutable_algorithm()->mutable_grpo();
    Observe("dppo", request).mutable_algorithm()->mutable_dppo_binary()->set_threshold(0.01f);
    Observe("dppo_top_k", request).mutable_algorithm()->mutable_dppo_top_k()->set_threshold(0.02f);
    Observe("soft", request).mutable_algorithm()->mutable_soft_acceptance();
    Observe("token", request).mutable_token_mask()->set_max_distance(0.01f);
  }
  // Observes corrections that weigh each slice as a whole, as one sequence.
  static void ObserveBySlice(v1::EvaluateRequest& request) {
    Observe("gspo", request).mutable_algorithm()->mutable_gspo()->set_epsilon_low(0.001f);
    Observe("mask", request).mutable_sequence_mask()->set_upper(1.0);
    for (const auto weight : {v1::ObservedCorrection::SEQUENCE_WEIGHT_ONE,
                              v1::ObservedCorrection::SEQUENCE_WEIGHT_PRODUCT}) {
      auto& mask = *Observe(absl::StrCat("weight_", weight), request).mutable_sequence_mask();
      mask.set_upper(1e300);
      mask.set_weight(weight);
    }
  }
  static std::map<std::string, v1::CorrectionTotals> ByName(const v1::EvaluateResponse& response) {
    std::map<std::string, v1::CorrectionTotals> totals;
    for (const v1::CorrectionTotals& one : response.corrections()) totals[one.correction()] = one;
    return totals;
  }
  // Returns the totals without their name.
  static std::string Values(v1::CorrectionTotals totals) {
    totals.clear_correction();
    return totals.ShortDebugString();
  }

  std::vector<float> advantages_;
};

// Compares the sums with float64 sums over the recorded and the sent log-probs.
TEST_F(StatisticsTest, SumsAreThoseOfTheRatios) {
  v1::EvaluateRequest request = Request(all_, 4);
  request.add_outputs(v1::OUTPUT_RATIOS);
  SetAdvantages(all_, request);
  const v1::EvaluateResponse response = Do(request);
  const std::vector<float> modified = Floats(response.ratios());
  double plain = 0, squared = 0, mass = 0, applied = 0, applied_squared = 0, applied_mass = 0;
  uint64_t below = 0, above = 0, touched = 0;
  for (size_t i = 0; i < modified.size(); ++i) {
    const size_t s = i / kLength;
    const size_t t = i % kLength;
    const double w = std::exp(static_cast<double>(current_[s].sampled_log_probs[t]) -
                              static_cast<double>(records_[s].sampled_log_probs[t]));
    const double counted = std::min(1024.0, w);
    plain += counted;
    squared += counted * counted;
    mass += std::min(1024.0, w * std::abs(advantages_[i]));
    const double applied_here = std::min(1024.0f, modified[i]);
    applied += applied_here;
    applied_squared += applied_here * applied_here;
    applied_mass += std::min(1024.0, double{modified[i]} * std::abs(advantages_[i]));
    below += w < 0.8;
    above += w > 1.2;
    touched += std::abs(modified[i] - w) > 1e-6 * w;
  }
  const v1::GetStepResponse step = StepOf(*run_, 4);
  const auto near = [](double got, double want) { EXPECT_NEAR(got, want, 1e-4 * want + 1e-2); };
  near(step.corrections(0).weight(), plain);
  near(step.corrections(0).weight_squared(), squared);
  near(step.corrections(0).gradient_mass(), mass);
  near(step.corrections(2).weight(), applied);
  near(step.corrections(2).weight_squared(), applied_squared);
  near(step.corrections(2).gradient_mass(), applied_mass);
  EXPECT_EQ(step.corrections(1).touched(), below + above);
  EXPECT_EQ(step.corrections(2).touched(), touched);
  EXPECT_EQ(step.distributions().ratios_beyond(1).positions(), below);
  EXPECT_EQ(step.distributions().ratios_beyond(2).positions(), above);
}

TEST_F(StatisticsTest, ObservingChangesNothingElse) {
  v1::EvaluateRequest request = Request(all_, 5);
  for (const v1::Output output :
       {v1::OUTPUT_RATIOS, v1::OUTPUT_LOG_RATIOS, v1::OUTPUT_ACCEPTANCE_PROBABILITIES}) {
    request.add_outputs(output);
  }
  request.add_prefix_curve(2);
  SetAdvantages(all_, request);
  const v1::EvaluateResponse plain = Do(request);
  EXPECT_EQ(plain.corrections_size(), 0);
  const v1::GetStepResponse before = StepOf(*run_, 5);
  ObserveAll(request);
  ObserveBySlice(request);
  const auto fresh = cache_.CreateRun("observing", LosslessConfig(kSlots));
  for (size_t s = 0; s < kIds.size(); ++s) AppendBlock(cache_, *fresh, records_[s].Block(kIds[s]));
  absl::StatusOr<v1::EvaluateResponse> observed = EvaluateAtOnce(*fresh, backend_, request);
  ASSERT_TRUE(observed.ok()) << observed.status();
  EXPECT_EQ(observed->corrections_size(), 3 + 13);
  v1::GetStepResponse step = StepOf(*fresh, 5);
  EXPECT_EQ(step.corrections_size(), 3 + 13);
  while (step.corrections_size() > 3) step.mutable_corrections()->RemoveLast();
  EXPECT_EQ(step.SerializeAsString(), before.SerializeAsString());
  observed->clear_corrections();
  EXPECT_EQ(observed->SerializeAsString(), plain.SerializeAsString());
}

TEST_F(StatisticsTest, ObservedSisIsTheRequestAtThatK) {
  v1::EvaluateRequest request = Request(all_, 6);
  SetAdvantages(all_, request);
  Observe("same", request).mutable_sis();
  Observe("same_expected", request).mutable_sis()->set_weight(v1::WEIGHT_EXPECTED);
  for (int k = 1; k < kSlots; ++k) {
    for (const v1::Weight weight : {v1::WEIGHT_SAMPLED, v1::WEIGHT_EXPECTED}) {
      auto& sis =
          *Observe("k" + std::to_string(k) + (weight == v1::WEIGHT_SAMPLED ? "s" : "e"), request)
               .mutable_sis();
      sis.set_top_k(k);
      sis.set_weight(weight);
    }
  }
  auto observed = ByName(Do(request));
  EXPECT_EQ(Values(observed["same"]), Values(observed["applied"]));
  for (int k = 1; k <= kSlots; ++k) {
    for (const v1::Weight weight : {v1::WEIGHT_SAMPLED, v1::WEIGHT_EXPECTED}) {
      v1::EvaluateRequest asked = Request(all_, 6);
      SetAdvantages(all_, asked);
      asked.set_top_k(k);
      asked.set_weight(weight);
      Observe("another", asked).mutable_algorithm()->mutable_no_correction();
      const std::string name =
          k == kSlots ? (weight == v1::WEIGHT_SAMPLED ? "same" : "same_expected")
                      : "k" + std::to_string(k) + (weight == v1::WEIGHT_SAMPLED ? "s" : "e");
      EXPECT_EQ(Values(ByName(Do(asked))["applied"]), Values(observed[name])) << name;
      EXPECT_GT(observed[name].touched(), 0);
    }
  }
}

// Without accepted tokens, modified and unmodified ratios are equal. k = 1 leaves most tokens
// outside the set, and only these are evaluated here.
TEST_F(StatisticsTest, ObservedAlgorithmsAreTheirCoefficients) {
  v1::EvaluateRequest all = Request(all_, 7);
  all.set_top_k(1);
  const std::string decisions = Do(all).decisions();
  std::string mask(decisions.size(), '\0');
  for (size_t i = 0; i < mask.size(); ++i)
    mask[i] = decisions[i] == v1::DECISION_OUTSIDE_TOP_K ? 1 : 0;

  std::map<std::string, v1::Algorithm> algorithms;
  for (int i = 0; i < v1::Algorithm::descriptor()->field_count(); ++i) {
    const auto* const field = v1::Algorithm::descriptor()->field(i);
    v1::Algorithm& algorithm = algorithms[std::string(field->name())];
    algorithm.GetReflection()->MutableMessage(&algorithm, field);
  }
  algorithms.erase("clip_cov");  // can't be observed
  algorithms["dppo_top_k"].mutable_dppo_top_k()->set_threshold(0.05f);
  algorithms["dppo_binary"].mutable_dppo_binary()->set_threshold(0.02f);
  algorithms["tis"].mutable_tis()->set_truncation(1.1f);
  algorithms["ice_pop"].mutable_ice_pop()->set_alpha(0.9f);
  for (const bool three_policies : {false, true}) {
    v1::EvaluateRequest request = all;
    request.set_mask(mask);
    SetAdvantages(all_, request);
    if (three_policies) {
      std::vector<float> current = Floats(request.gathered().sampled_log_probs());
      for (size_t i = 0; i < current.size(); ++i) current[i] += 0.3f * std::cos(float(i)) - 0.3f;
      request.mutable_decoupled()->set_current_log_probs(current.data(),
                                                         current.size() * sizeof(float));
      std::erase_if(algorithms, [](const auto& algorithm) {
        return ReadsTotalVariations(*ParseAlgorithm(algorithm.second));
      });
    }
    for (const auto& [name, algorithm] : algorithms) {
      *Observe(name, request).mutable_algorithm() = algorithm;
    }
    const auto observed = ByName(Do(request));
    request.clear_observe();
    request.add_outputs(v1::OUTPUT_COEFFICIENTS);
    for (const auto& [name, algorithm] : algorithms) {
      *request.mutable_algorithm() = algorithm;
      const std::vector<float> coefficients = Floats(Do(request).coefficients());
      double sum = 0, squared = 0, gradient = 0;
      uint64_t zeroed = 0;
      for (size_t i = 0; i < coefficients.size(); ++i) {
        if (mask[i] == 0) continue;
        const double c = std::min(1024.0f, coefficients[i]);
        sum += c;
        squared += c * c;
        gradient += std::min(1024.0, double{coefficients[i]} * std::abs(advantages_[i]));
        zeroed += coefficients[i] == 0;
      }
      const v1::CorrectionTotals& totals = observed.at(name);
      EXPECT_NEAR(totals.weight(), sum, 1e-4 * sum + 1e-2) << name;
      EXPECT_NEAR(totals.weight_squared(), squared, 1e-4 * squared + 1e-2) << name;
      EXPECT_NEAR(totals.gradient_mass(), gradient, 1e-4 * gradient + 1e-2) << name;
      EXPECT_EQ(totals.zeroed(), zeroed) << name;
      if (name == "gspo" || name == "dppo_top_k") {
        EXPECT_GT(zeroed, 0) << name << " drops none: the test shows nothing";
      }
    }
  }
}

// Compares the masks of frameworks with float64 sums over the recorded and the sent log-probs.
TEST_F(StatisticsTest, MasksWeighAsFrameworksDo) {
  constexpr uint32_t kCount = 12;
  for (int s = 0; s < 3; ++s) {
    double log_product = 0;
    uint64_t moved = 0;
    std::vector<std::pair<double, double>> distances_and_ratios;
    for (uint32_t t = 0; t < kCount; ++t) {
      const double log_p = current_[s].sampled_log_probs[t];
      const double log_q = records_[s].sampled_log_probs[t];
      log_product += log_p - log_q;
      moved += log_p != log_q;
      distances_and_ratios.emplace_back(std::abs(std::exp(log_p) - std::exp(log_q)),
                                        std::exp(log_p - log_q));
    }
    std::ranges::sort(distances_and_ratios);
    // Between the distances of the fifth and the sixth position.
    const double distance = (distances_and_ratios[4].first + distances_and_ratios[5].first) / 2;
    double kept_weight = 0;
    for (int i = 0; i < 5; ++i) kept_weight += distances_and_ratios[i].second;
    const double product = std::exp(log_product);
    v1::EvaluateRequest request = Request({{s, 0, kCount}}, 8);
    const auto mask = [&](const char* name, double center, auto weight) {
      auto& made = *Observe(absl::StrCat(name, s), request).mutable_sequence_mask();
      made.set_lower(0.99 * center);
      made.set_upper(1.01 * center);
      made.set_weight(weight);
    };
    using Observed = v1::ObservedCorrection;
    const double mean = std::exp(log_product / kCount);
    // A run has at most 16 names.
    if (s == 0) mask("ratio", mean, Observed::SEQUENCE_WEIGHT_UNSPECIFIED);
    mask("one", mean, Observed::SEQUENCE_WEIGHT_ONE);
    mask("one_out", 1.03 * mean, Observed::SEQUENCE_WEIGHT_ONE);
    mask("product", product, Observed::SEQUENCE_WEIGHT_PRODUCT);
    mask("product_out", 1.03 * product, Observed::SEQUENCE_WEIGHT_PRODUCT);
    Observe(absl::StrCat("token", s), request)
        .mutable_token_mask()
        ->set_max_distance(static_cast<float>(distance));
    auto totals = ByName(Do(request));
    const auto of = [&](const char* name) { return totals[absl::StrCat(name, s)]; };
    if (s == 0) EXPECT_EQ(Values(of("ratio")), Values(totals["plain"]));
    EXPECT_EQ(of("one").weight(), kCount);
    EXPECT_EQ(of("one").touched(), moved);
    EXPECT_EQ(of("one").zeroed(), 0);
    // Weights are counted in steps of 2^-16.
    EXPECT_NEAR(of("product").weight(), kCount * std::min(product, 1024.0),
                kCount * 1e-4 * std::max(product, 1.0));
    EXPECT_NEAR(of("product").abs_log_weight(), kCount * std::abs(log_product), 1e-4);
    EXPECT_EQ(of("product").touched(), kCount);
    for (const char* out : {"one_out", "product_out"}) {
      EXPECT_EQ(of(out).zeroed(), kCount) << out;
      EXPECT_EQ(of(out).weight(), 0) << out;
    }
    EXPECT_EQ(of("token").zeroed(), kCount - 5);
    EXPECT_EQ(of("token").touched(), kCount - 5);
    EXPECT_NEAR(of("token").weight(), kept_weight, 1e-3 * kept_weight);
  }
}

// These corrections weigh a slice as one sequence, even if only a part of it is counted.
TEST_F(StatisticsTest, PartsOfASliceAreWeighedByTheWholeSlice) {
  v1::EvaluateRequest whole = Request({{1, 0, kLength}}, 13);
  SetAdvantages({{1, 0, kLength}}, whole);
  ObserveBySlice(whole);
  Do(whole);
  const v1::GetStepResponse want = StepOf(*run_, 13);
  // Another rank has evaluated the middle before, without these corrections.
  const auto fresh = cache_.CreateRun("parts", LosslessConfig(kSlots));
  AppendBlock(cache_, *fresh, records_[1].Block(kIds[1]));
  const std::vector<NamedRange> middle = {{1, 60, 30}};
  v1::EvaluateRequest first = Request(middle, 13);
  SetAdvantages(middle, first);
  ASSERT_TRUE(EvaluateAtOnce(*fresh, backend_, first).ok());
  ASSERT_TRUE(EvaluateAtOnce(*fresh, backend_, whole).ok());
  const v1::GetStepResponse got = StepOf(*fresh, 13);
  ASSERT_EQ(got.corrections_size(), 7);
  for (int i = 3; i < 5; ++i) {
    EXPECT_EQ(got.corrections(i).positions(), kLength - 30);
    // All positions have the weight of the whole slice, or 0.
    const auto kept = [](const v1::CorrectionTotals& totals) {
      return static_cast<double>(totals.positions() - totals.zeroed());
    };
    if (got.corrections(i).correction() == "mask") continue;
    EXPECT_GT(kept(got.corrections(i)), 0);
    EXPECT_NEAR(got.corrections(i).weight() / kept(got.corrections(i)),
                want.corrections(i).weight() / kept(want.corrections(i)), 1e-4);
  }
}

// Totals don't depend on how the batch is split, on who sends the parts, or how often.
TEST_F(StatisticsTest, AnySplitGivesTheSame) {
  v1::EvaluateRequest whole = Request(all_, 9);
  SetAdvantages(all_, whole);
  whole.add_prefix_curve(1);
  whole.add_prefix_curve(3);
  ObserveAll(whole);
  Do(whole);
  const v1::GetStepResponse want = StepOf(*run_, 9);
  const auto fresh = cache_.CreateRun("split", LosslessConfig(kSlots));
  for (size_t s = 0; s < kIds.size(); ++s) AppendBlock(cache_, *fresh, records_[s].Block(kIds[s]));
  // These overlap, so that parts of slices are evaluated a second time to be counted.
  const std::vector<std::vector<NamedRange>> parts = {{{2, 50, 100}},
                                                      {{0, 0, 120}, {1, 100, 100}},
                                                      {{0, 60, 140}, {2, 40, 30}, {1, 90, 20}},
                                                      {{2, 50, 100}},
                                                      {{1, 0, kLength}, {2, 0, kLength}}};
  uint64_t counted = 0;
  for (const std::vector<NamedRange>& ranges : parts) {
    v1::EvaluateRequest part = Request(ranges, 9);
    SetAdvantages(ranges, part);
    part.add_prefix_curve(1);
    part.add_prefix_curve(3);
    ObserveAll(part);
    const absl::StatusOr<v1::EvaluateResponse> response = EvaluateAtOnce(*fresh, backend_, part);
    ASSERT_TRUE(response.ok()) << response.status();
    counted += response->newly_counted();
  }
  EXPECT_EQ(counted, 3 * kLength);
  EXPECT_EQ(StepOf(*fresh, 9).ShortDebugString(), want.ShortDebugString());
  const auto curve = [](const sis::Run& run) {
    std::vector<double> values;
    for (const auto& [top_k, totals] : run.counters().totals().prefix_curve) {
      values.insert(values.end(),
                    {static_cast<double>(top_k), totals.Of(&PrefixPointSums::positions),
                     totals.Of(&PrefixPointSums::residual_mass, kFixedBits),
                     totals.Of(&PrefixPointSums::expected_acceptance, kFixedBits)});
    }
    return values;
  };
  EXPECT_EQ(curve(*fresh).size(), 8);
  EXPECT_THAT(curve(*fresh), testing::Pointwise(testing::DoubleNear(1e-9), curve(*run_)));
}

TEST_F(StatisticsTest, APrefixPointCountsOnlyRequestsForIt) {
  const auto evaluate = [&](const NamedRange& range, const std::vector<uint32_t>& curve) {
    v1::EvaluateRequest request = Request({range}, 2);
    request.mutable_prefix_curve()->Assign(curve.begin(), curve.end());
    Do(request);
  };
  evaluate({0, 0, 100}, {1, kSlots});
  evaluate({0, 100, 70}, {3, kSlots});
  evaluate({0, 170, 30}, {});
  evaluate({0, 0, kLength}, {1, 2, 3});  // all counted before
  const v1::GetStepResponse step = StepOf(*run_, 2);
  std::map<uint32_t, uint64_t> positions;
  for (const v1::PrefixPoint& point : step.prefix_curve()) {
    positions[point.top_k()] = point.positions();
  }
  EXPECT_EQ(positions, (std::map<uint32_t, uint64_t>{{1, 100}, {3, 70}, {kSlots, 170}}));
}

// Sequence "a", in blocks of all ages and of versions ahead.
class AgesTest : public StatisticsTest {
 protected:
  static constexpr uint64_t kVersion = 40;
  static constexpr uint64_t kVersions[] = {40, 39, 38, 37, 36, 33,  32, 25,
                                           24, 9,  8,  0,  41, 900, 40};
  static constexpr uint32_t kBlock = 13;
  static constexpr uint32_t kPositions = kBlock * std::size(kVersions);

  std::shared_ptr<sis::Run> NewRun(const std::string& id) {
    const auto run = cache_.CreateRun(id, LosslessConfig(kSlots));
    for (uint32_t i = 0; i < std::size(kVersions); ++i) {
      const uint32_t first = i * kBlock;
      const RecordedBlock block = records_[0].Block("a", first, kVersions[i], first, kBlock);
      EXPECT_EQ(AppendBlock(cache_, *run, block).code(), 0);
    }
    EXPECT_TRUE(run->AdvanceVersion(kVersion).ok());
    return run;
  }
  v1::EvaluateRequest RequestOf(uint32_t first, uint32_t count, v1::Weight weight) const {
    v1::EvaluateRequest request = Request({{0, first, count}}, 1);
    request.set_weight(weight);
    std::string mask(count, '\1');
    for (uint32_t i = 0; i < count; ++i) mask[i] = (first + i) % 7 != 3;
    request.set_mask(mask);
    return request;
  }
};

// In float64, from what was recorded, sent and returned.
TEST_F(AgesTest, SumsAreThoseOfThePositions) {
  // The lower ends of the classes.
  constexpr uint64_t kFrom[] = {0, 1, 2, 3, 4, 8, 16, 32};
  for (const v1::Weight weight : {v1::WEIGHT_SAMPLED, v1::WEIGHT_EXPECTED}) {
    const auto run = NewRun(v1::Weight_Name(weight));
    v1::EvaluateRequest request = RequestOf(0, kPositions, weight);
    request.add_outputs(v1::OUTPUT_RATIOS);
    const absl::StatusOr<v1::EvaluateResponse> response = EvaluateAtOnce(*run, backend_, request);
    ASSERT_TRUE(response.ok()) << response.status();
    const std::vector<float> ratios = Floats(response->ratios());
    struct Expected {
      uint64_t counts[3] = {};
      double d = 0, d_sis = 0, weight = 0, weight_squared = 0;
    };
    std::map<std::pair<bool, uint64_t>, Expected> expected;  // by `ahead` and `from`
    for (uint32_t i = 0; i < kPositions; ++i) {
      if (request.mask()[i] == 0) continue;
      const uint64_t version = kVersions[i / kBlock];
      const bool ahead = version > kVersion;
      const uint64_t from =
          ahead ? 0
                : *(std::upper_bound(std::begin(kFrom), std::end(kFrom), kVersion - version) - 1);
      Expected& age = expected[{ahead, from}];
      ++age.counts[response->decisions()[i] - v1::DECISION_ACCEPTED];
      age.d +=
          std::abs(double{current_[0].sampled_log_probs[i]} - records_[0].sampled_log_probs[i]);
      age.d_sis += std::abs(std::log(double{ratios[i]}));
      const double counted = std::min(1024.0, double{ratios[i]});
      age.weight += counted;
      age.weight_squared += counted * counted;
    }
    const v1::GetStepResponse step = StepOf(*run, 1);
    ASSERT_EQ(step.ages_size(), 9);
    ASSERT_EQ(expected.size(), 9);
    int i = 0;
    double d = 0, d_sis = 0, weights = 0, weights_squared = 0;
    for (const auto& [key, want] : expected) {
      const v1::AgeTotals& age = step.ages(i++);
      SCOPED_TRACE(age.ShortDebugString());
      EXPECT_EQ(std::pair(age.ahead(), age.from()), key);
      if (age.ahead()) {
        EXPECT_EQ(age.to(), 0);
      } else if (i < 8) {
        EXPECT_EQ(age.to(), kFrom[i] - 1);
      } else {
        EXPECT_FALSE(age.has_to());
      }
      EXPECT_EQ(age.accepted(), want.counts[0]);
      EXPECT_EQ(age.rejected(), want.counts[1]);
      EXPECT_EQ(age.outside_top_k(), want.counts[2]);
      EXPECT_NEAR(age.d(), want.d, 1e-5 * want.d);
      EXPECT_NEAR(age.d_sis(), want.d_sis, 1e-4 * want.d);
      EXPECT_NEAR(age.weight(), want.weight, 1e-4 * want.weight);
      EXPECT_NEAR(age.weight_squared(), want.weight_squared, 1e-4 * want.weight_squared);
      d += age.d();
      d_sis += age.d_sis();
      weights += age.weight();
      weights_squared += age.weight_squared();
    }
    // Sums in fixed point are exact as doubles.
    EXPECT_EQ(d, step.totals().d());
    EXPECT_EQ(d_sis, step.totals().d_sis());
    EXPECT_EQ(weights, step.corrections(2).weight());
    EXPECT_EQ(weights_squared, step.corrections(2).weight_squared());
  }
}

// Blocks that are evaluated together count as each of them alone.
TEST_F(AgesTest, OfASequenceAreTheSumsOfItsBlocks) {
  for (const v1::Weight weight : {v1::WEIGHT_SAMPLED, v1::WEIGHT_EXPECTED}) {
    const auto whole = NewRun("whole" + v1::Weight_Name(weight));
    const auto parts = NewRun("parts" + v1::Weight_Name(weight));
    ASSERT_TRUE(EvaluateAtOnce(*whole, backend_, RequestOf(0, kPositions, weight)).ok());
    for (uint32_t first = 0; first < kPositions; first += kBlock) {
      ASSERT_TRUE(EvaluateAtOnce(*parts, backend_, RequestOf(first, kBlock, weight)).ok());
    }
    EXPECT_EQ(StepOf(*whole, 1).SerializeAsString(), StepOf(*parts, 1).SerializeAsString());
  }
}

TEST_F(StatisticsTest, BadCorrectionsAreRefusedByName) {
  struct Case {
    std::string message;
    std::function<void(v1::EvaluateRequest&)> change;
    StatusCode code = StatusCode::kInvalidArgument;
  };
  const auto tis = [](v1::EvaluateRequest& r, const std::string& name) {
    Observe(name, r).mutable_algorithm()->mutable_tis();
  };
  const Case cases[] = {
      {"observe[0].name", [&](auto& r) { tis(r, ""); }},
      {"observe[0].name", [&](auto& r) { tis(r, "Tis"); }},
      {"observe[0].name", [&](auto& r) { tis(r, std::string(65, 'a')); }},
      {"observe[0].name: 'applied'", [&](auto& r) { tis(r, "applied"); }},
      {"observe[1].name: 'a' comes twice",
       [&](auto& r) {
         tis(r, "a");
         tis(r, "a");
       }},
      {"observe[0].correction: none", [](auto& r) { Observe("a", r); }},
      {"observe[0].sis.top_k: 6", [](auto& r) { Observe("a", r).mutable_sis()->set_top_k(6); }},
      {"observe[0].sis.top_k: 4",
       [](auto& r) {
         r.set_top_k(3);
         Observe("a", r).mutable_sis()->set_top_k(4);
       }},
      {"observe[0].sis.weight: 7",
       [](auto& r) { Observe("a", r).mutable_sis()->set_weight(static_cast<v1::Weight>(7)); }},
      {"observe[0].algorithm: none", [](auto& r) { Observe("a", r).mutable_algorithm(); }},
      {"observe[0].algorithm.tis.truncation",
       [](auto& r) { Observe("a", r).mutable_algorithm()->mutable_tis()->set_truncation(0); }},
      {"observe[0].algorithm: clip_cov can't be observed: which tokens it drops depends on all",
       [](auto& r) { Observe("a", r).mutable_algorithm()->mutable_clip_cov(); }},
      {"observe[0].algorithm: dppo_top_k needs advantages",
       [](auto& r) { Observe("a", r).mutable_algorithm()->mutable_dppo_top_k(); }},
      {"observe[0].algorithm: dppo_top_k can't be observed with three policies",
       [](auto& r) {
         Observe("a", r).mutable_algorithm()->mutable_dppo_top_k();
         *r.mutable_decoupled()->mutable_current_log_probs() = r.gathered().sampled_log_probs();
       }},
      {"observe[0].algorithm: gspo needs advantages",
       [](auto& r) { Observe("a", r).mutable_algorithm()->mutable_gspo(); }},
      {"observe[0].sequence_mask",
       [](auto& r) { Observe("a", r).mutable_sequence_mask()->set_lower(-1); }},
      {"observe[0].sequence_mask",
       [](auto& r) { Observe("a", r).mutable_sequence_mask()->set_upper(HUGE_VAL); }},
      {"observe[0].sequence_mask.weight: 7",
       [](auto& r) {
         Observe("a", r).mutable_sequence_mask()->set_weight(
             static_cast<v1::ObservedCorrection::SequenceWeight>(7));
       }},
      {"observe[0].token_mask.max_distance",
       [](auto& r) { Observe("a", r).mutable_token_mask()->set_max_distance(1.5f); }},
      {"observe: 17 corrections, at most 16",
       [&](auto& r) {
         for (int i = 0; i < 17; ++i) tis(r, "a" + std::to_string(i));
       }},
      {"observe: 'tis' is the name of another",
       [](auto& r) { Observe("tis", r).mutable_algorithm()->mutable_tis()->set_truncation(1.5f); },
       StatusCode::kFailedPrecondition},
      {"observe: 16 new names, but the run has 1",
       [&](auto& r) {
         for (int i = 0; i < 16; ++i) tis(r, "a" + std::to_string(i));
       },
       StatusCode::kResourceExhausted}};
  v1::EvaluateRequest first = Request({{0, 0, 5}}, 100);
  tis(first, "tis");
  Do(first);
  for (const Case& c : cases) {
    v1::EvaluateRequest request = Request({{1, 10, 50}}, 11);
    c.change(request);
    const absl::Status status = Try(request).status();
    EXPECT_EQ(status.code(), c.code) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    EXPECT_FALSE(run_->steps().Find(11).has_value()) << c.message;
  }
  v1::EvaluateRequest reduced = ReducedRequest({{1, 10, 50}}, kSlots);
  Observe("below", reduced).mutable_sis()->set_top_k(2);
  EXPECT_THAT(std::string(Try(reduced).status().message()), HasSubstr("needs log-probs at every"));
  reduced.clear_observe();
  Observe("top_k", reduced).mutable_algorithm()->mutable_dppo_top_k();
  EXPECT_THAT(std::string(Try(reduced).status().message()), HasSubstr("needs log-probs at every"));
  reduced.clear_observe();
  Observe("same", reduced).mutable_sis();
  EXPECT_TRUE(Try(reduced).ok());
  Do(first);  // the name keeps its meaning
  v1::EvaluateRequest mask = Request({{0, 0, 5}}, 101);
  v1::ObservedCorrection& observed = Observe("mask", mask);
  observed.mutable_sequence_mask()->set_upper(2);
  Do(mask);
  observed.mutable_sequence_mask()->set_weight(v1::ObservedCorrection::SEQUENCE_WEIGHT_RATIO);
  EXPECT_TRUE(Try(mask).ok()) << "the default weight";
}

}  // namespace
}  // namespace sis
