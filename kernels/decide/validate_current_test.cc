#include "kernels/decide/validate_current.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sis {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr float kUnused = -std::numeric_limits<float>::infinity();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kSlots = 3;

MATCHER_P(IsInvalid, message, "") {
  return ExplainMatchResult(absl::StatusCode::kInvalidArgument, arg.code(), result_listener) &&
         ExplainMatchResult(message, std::string(arg.message()), result_listener);
}

auto Names(const char* field, const char* value) {
  return IsInvalid(AllOf(HasSubstr(field), HasSubstr("position 41"), HasSubstr(value)));
}

auto NamesSlot(const char* field, const char* slot, const char* value) {
  return IsInvalid(
      AllOf(HasSubstr(field), HasSubstr("position 41"), HasSubstr(slot), HasSubstr(value)));
}

// Three slots and one position, 41.
struct Current {
  std::vector<float> behavior_log_probs = {-0.5f, -2.0f, kUnused};
  std::vector<float> behavior_sampled_log_probs = {-0.5f};
  std::vector<uint16_t> ranks = {0};
  std::vector<float> sampled_log_probs = {-0.25f};
  std::vector<float> log_probs = {-0.25f, -3.0f, kNan};
  std::vector<float> log_envelopes = {0.25f};
  std::vector<float> covered_masses = {0.9f};

  BehaviorView behavior() const { return {behavior_log_probs, behavior_sampled_log_probs, ranks}; }
  absl::Status ValidateAsGathered() const {
    return ValidateCurrent(behavior(), {sampled_log_probs, log_probs, {}, {}}, kSlots, 41);
  }
  absl::Status ValidateAsReduced() const {
    return ValidateCurrent(behavior(), {sampled_log_probs, {}, log_envelopes, covered_masses},
                           kSlots, 41);
  }
};

TEST(ValidateCurrentTest, AcceptsBothFormsAndIgnoresUnusedSlots) {
  EXPECT_TRUE(Current().ValidateAsGathered().ok()) << Current().ValidateAsGathered();
  EXPECT_TRUE(Current().ValidateAsReduced().ok()) << Current().ValidateAsReduced();
}

TEST(ValidateCurrentTest, AcceptsMinusInfinity) {
  Current current;
  current.sampled_log_probs[0] = -kInfinity;
  current.log_probs = {-kInfinity, -kInfinity, 5.0f};
  current.log_envelopes[0] = -kInfinity;
  current.covered_masses[0] = 0.0f;
  EXPECT_TRUE(current.ValidateAsGathered().ok()) << current.ValidateAsGathered();
  EXPECT_TRUE(current.ValidateAsReduced().ok()) << current.ValidateAsReduced();
}

TEST(ValidateCurrentTest, RefusesSampledLogProbsThatAreNone) {
  for (const auto& [log_prob, text] :
       {std::pair(kNan, "nan"), std::pair(kInfinity, "inf"), std::pair(0.25f, "0.25")}) {
    Current current;
    current.sampled_log_probs[0] = log_prob;
    EXPECT_THAT(current.ValidateAsGathered(), Names("gathered.sampled_log_probs", text));
    EXPECT_THAT(current.ValidateAsReduced(), Names("reduced.sampled_log_probs", text));
  }
}

TEST(ValidateCurrentTest, RefusesGatheredLogProbsThatAreNone) {
  for (const auto& [log_prob, text] :
       {std::pair(kNan, "nan"), std::pair(kInfinity, "inf"), std::pair(0.25f, "0.25")}) {
    Current current;
    current.log_probs[1] = log_prob;
    EXPECT_THAT(current.ValidateAsGathered(), NamesSlot("gathered.log_probs", "slot 1", text));
  }
}

TEST(ValidateCurrentTest, RefusesAGatheredMassAboveOne) {
  Current current;
  current.log_probs = {-0.25f, -1.25f, kNan};  // 0.78 + 0.29
  EXPECT_THAT(current.ValidateAsGathered(), Names("gathered.log_probs", "1.06"));
}

TEST(ValidateCurrentTest, RefusesLogEnvelopesThatAreNone) {
  for (const auto& [value, text] : {std::pair(kNan, "nan"), std::pair(kInfinity, "inf")}) {
    Current current;
    current.log_envelopes[0] = value;
    EXPECT_THAT(current.ValidateAsReduced(), Names("reduced.log_envelopes", text));
  }
}

TEST(ValidateCurrentTest, RefusesCoveredMassesThatAreNone) {
  for (const auto& [value, text] :
       {std::pair(kNan, "nan"), std::pair(-0.125f, "-0.125"), std::pair(1.125f, "1.125")}) {
    Current current;
    current.covered_masses[0] = value;
    EXPECT_THAT(current.ValidateAsReduced(), Names("reduced.covered_masses", text));
  }
}

}  // namespace
}  // namespace sis
