#include "server/evaluate/parse_algorithm.h"

#include <initializer_list>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sis {
namespace {

// Reads a rule. `parameters` maps the message's field names to the rule's members. Members of unset
// fields keep their defaults.
template <typename Rule>
Rule Read(const google::protobuf::Message& message,
          std::initializer_list<std::pair<const char*, float Rule::*>> parameters) {
  Rule rule;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (const auto& [name, parameter] : parameters) {
    const auto* const field = message.GetDescriptor()->FindFieldByName(name);
    if (reflection.HasField(message, field)) rule.*parameter = reflection.GetFloat(message, field);
  }
  return rule;
}

Algorithm FromMessage(const v1::Algorithm& message) {
  switch (message.algorithm_case()) {
    case v1::Algorithm::kNoCorrection:
      return NoCorrection{};
    case v1::Algorithm::kGrpo:
      return Read<Grpo>(message.grpo(), {{"epsilon", &Grpo::epsilon}});
    case v1::Algorithm::kDapo:
      return Read<Dapo>(message.dapo(), {{"epsilon_low", &Dapo::epsilon_low},
                                         {"epsilon_high", &Dapo::epsilon_high}});
    case v1::Algorithm::kGspo:
      return Read<Gspo>(message.gspo(), {{"epsilon_low", &Gspo::epsilon_low},
                                         {"epsilon_high", &Gspo::epsilon_high}});
    case v1::Algorithm::kCispo:
      return Read<Cispo>(message.cispo(), {{"epsilon_high", &Cispo::epsilon_high}});
    case v1::Algorithm::kDppoTopK:
      return Read<DppoTopK>(message.dppo_top_k(), {{"threshold", &DppoTopK::threshold}});
    case v1::Algorithm::kDppoBinary:
      return Read<DppoBinary>(message.dppo_binary(), {{"threshold", &DppoBinary::threshold}});
    case v1::Algorithm::kClipCov:
      return Read<ClipCov>(message.clip_cov(), {{"lower", &ClipCov::lower},
                                                {"upper", &ClipCov::upper},
                                                {"fraction", &ClipCov::fraction}});
    case v1::Algorithm::kTis:
      return Read<Tis>(message.tis(), {{"truncation", &Tis::truncation},
                                       {"epsilon_low", &Tis::epsilon_low},
                                       {"epsilon_high", &Tis::epsilon_high}});
    case v1::Algorithm::kIcePop:
      return Read<IcePop>(message.ice_pop(), {{"alpha", &IcePop::alpha},
                                              {"beta", &IcePop::beta},
                                              {"epsilon_low", &IcePop::epsilon_low},
                                              {"epsilon_high", &IcePop::epsilon_high}});
    case v1::Algorithm::kSoftAcceptance:
      return SoftAcceptance{};
    case v1::Algorithm::kDampedTruncation:
      return DampedTruncation{};
    case v1::Algorithm::kImportanceSampling:
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
