#include "server/evaluate/wanted_outputs.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sis {

absl::StatusOr<WantedOutputs> WantedOutputs::Parse(const v1::EvaluateRequest& request) {
  WantedOutputs wanted;
  if (request.outputs().empty()) wanted.bits_ = 1u << v1::OUTPUT_ACCEPT_BITS;
  for (const int output : request.outputs()) {
    if (!v1::Output_IsValid(output) || output == v1::OUTPUT_UNSPECIFIED) {
      return absl::InvalidArgumentError(absl::StrCat("outputs: ", output, " is not an output"));
    }
    wanted.bits_ |= 1u << output;
  }
  return wanted;
}

bool WantedOutputs::NeedEveryRatio() const {
  return Has(v1::OUTPUT_RATIOS) || Has(v1::OUTPUT_LOG_RATIOS) || Has(v1::OUTPUT_SURROGATES) ||
         Has(v1::OUTPUT_COEFFICIENTS);
}

}  // namespace sis
