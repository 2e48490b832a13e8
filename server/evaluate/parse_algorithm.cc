#include "server/evaluate/parse_algorithm.h"

#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sis {
namespace {

Algorithm FromMessage(const v1::Algorithm& message) {
  switch (message.algorithm_case()) {
    case v1::Algorithm::kImportanceSampling:
      return ImportanceSampling{};
    case v1::Algorithm::kNoCorrection:
      return NoCorrection{};
    case v1::Algorithm::kGrpo: {
      Grpo grpo;
      if (message.grpo().has_epsilon()) grpo.epsilon = message.grpo().epsilon();
      return grpo;
    }
    case v1::Algorithm::kDapo: {
      Dapo dapo;
      if (message.dapo().has_epsilon_low()) dapo.epsilon_low = message.dapo().epsilon_low();
      if (message.dapo().has_epsilon_high()) dapo.epsilon_high = message.dapo().epsilon_high();
      return dapo;
    }
    case v1::Algorithm::kGspo: {
      Gspo gspo;
      if (message.gspo().has_epsilon_low()) gspo.epsilon_low = message.gspo().epsilon_low();
      if (message.gspo().has_epsilon_high()) gspo.epsilon_high = message.gspo().epsilon_high();
      return gspo;
    }
    case v1::Algorithm::kCispo: {
      Cispo cispo;
      if (message.cispo().has_epsilon_high()) cispo.epsilon_high = message.cispo().epsilon_high();
      return cispo;
    }
    case v1::Algorithm::kDppoTopK: {
      DppoTopK dppo;
      if (message.dppo_top_k().has_threshold()) dppo.threshold = message.dppo_top_k().threshold();
      return dppo;
    }
    case v1::Algorithm::kDppoBinary: {
      DppoBinary dppo;
      if (message.dppo_binary().has_threshold()) dppo.threshold = message.dppo_binary().threshold();
      return dppo;
    }
    case v1::Algorithm::kClipCov: {
      ClipCov clip_cov;
      const v1::Algorithm::ClipCov& parameters = message.clip_cov();
      if (parameters.has_lower()) clip_cov.lower = parameters.lower();
      if (parameters.has_upper()) clip_cov.upper = parameters.upper();
      if (parameters.has_fraction()) clip_cov.fraction = parameters.fraction();
      return clip_cov;
    }
    case v1::Algorithm::kTis: {
      Tis tis;
      const v1::Algorithm::Tis& parameters = message.tis();
      if (parameters.has_truncation()) tis.truncation = parameters.truncation();
      if (parameters.has_epsilon_low()) tis.epsilon_low = parameters.epsilon_low();
      if (parameters.has_epsilon_high()) tis.epsilon_high = parameters.epsilon_high();
      return tis;
    }
    case v1::Algorithm::kIcePop: {
      IcePop ice_pop;
      const v1::Algorithm::IcePop& parameters = message.ice_pop();
      if (parameters.has_alpha()) ice_pop.alpha = parameters.alpha();
      if (parameters.has_beta()) ice_pop.beta = parameters.beta();
      if (parameters.has_epsilon_low()) ice_pop.epsilon_low = parameters.epsilon_low();
      if (parameters.has_epsilon_high()) ice_pop.epsilon_high = parameters.epsilon_high();
      return ice_pop;
    }
    case v1::Algorithm::kSoftAcceptance:
      return SoftAcceptance{};
    case v1::Algorithm::kDampedTruncation:
      return DampedTruncation{};
    case v1::Algorithm::ALGORITHM_NOT_SET:
      break;
  }
  return ImportanceSampling{};
}

}  // namespace

absl::StatusOr<Algorithm> ParseAlgorithm(const v1::Algorithm& message) {
  if (message.algorithm_case() == v1::Algorithm::ALGORITHM_NOT_SET) {
    return absl::InvalidArgumentError("algorithm: none of its fields is set");
  }
  Algorithm algorithm = FromMessage(message);
  absl::Status status = std::visit([](const auto& rule) { return rule.Validate(); }, algorithm);
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("algorithm.", status.message()));
  return algorithm;
}

}  // namespace sis
