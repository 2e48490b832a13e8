#include "server/evaluate/parse_algorithm.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sis {
namespace {

void ReadParameters(const google::protobuf::Message& message, Algorithm& algorithm) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (const Parameter& parameter : ParametersOf(algorithm)) {
    const auto* const field = message.GetDescriptor()->FindFieldByName(std::string(parameter.name));
    if (reflection.HasField(message, field)) *parameter.value = reflection.GetFloat(message, field);
  }
}

}  // namespace

absl::StatusOr<Algorithm> ParseAlgorithm(const v1::Algorithm& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const auto* const field =
      reflection.GetOneofFieldDescriptor(message, message.GetDescriptor()->oneof_decl(0));
  for (Algorithm& algorithm : AllAlgorithms()) {
    if (field == nullptr || field->name() != AlgorithmName(algorithm)) continue;
    ReadParameters(reflection.GetMessage(message, field), algorithm);
    const absl::Status status = CheckParameters(algorithm);
    if (status.ok()) return algorithm;
    return absl::InvalidArgumentError(absl::StrCat("algorithm.", status.message()));
  }
  return absl::InvalidArgumentError("algorithm: none of its fields is set");
}

}  // namespace sis
