#include "client/study/arm.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sis::study {
namespace {

// The bounds of a single mini-batch of this size would hold back GSPO altogether: its defaults are
// for responses of thousands of tokens.
constexpr float kGspoEpsilon = 0.1f;

struct NamedArm {
  std::string_view name;
  Arm arm;
};

absl::StatusOr<Arm> ParseAlgorithm(std::string_view name) {
  const NamedArm kArms[] = {
      {"importance_sampling", {ImportanceSampling{}}},
      {"no_correction", {NoCorrection{}}},
      {"grpo", {Grpo{}}},
      {"grpo_epsilon_0.4", {Grpo{.epsilon = 0.4f}}},
      {"grpo_dual_clip", {.algorithm = Grpo{}, .dual_clip = 2.0f}},
      {"dapo", {.algorithm = Dapo{}, .leaves_out_equal_groups = true}},
      {"gspo", {Gspo{.epsilon_low = kGspoEpsilon, .epsilon_high = kGspoEpsilon}}},
      {"cispo", {Cispo{}}},
      {"tis", {Tis{}}},
      {"ice_pop", {IcePop{}}},
      {"dppo_top_k", {DppoTopK{}}},
      {"soft_acceptance", {SoftAcceptance{}}},
  };
  for (const NamedArm& named : kArms) {
    if (named.name == name) return named.arm;
  }
  return absl::InvalidArgumentError(absl::StrCat("no algorithm is called ", std::string(name)));
}

absl::StatusOr<Correction> ParseCorrection(std::string_view name) {
  constexpr std::pair<std::string_view, Correction> kCorrections[] = {
      {"sampled", Correction::kSampled},
      {"expected", Correction::kExpected},
      {"positive", Correction::kPositive},
      {"random", Correction::kRandom}};
  for (const auto& [known, correction] : kCorrections) {
    if (known == name) return correction;
  }
  return absl::InvalidArgumentError(absl::StrCat("no correction is called ", std::string(name)));
}

}  // namespace

absl::StatusOr<Arm> ParseArm(std::string_view name) {
  const size_t plus = name.find('+');
  absl::StatusOr<Arm> arm = ParseAlgorithm(name.substr(0, plus));
  if (!arm.ok() || plus == std::string_view::npos) return arm;
  const absl::StatusOr<Correction> correction = ParseCorrection(name.substr(plus + 1));
  if (!correction.ok()) return correction.status();
  arm->correction = *correction;
  return arm;
}

}  // namespace sis::study
