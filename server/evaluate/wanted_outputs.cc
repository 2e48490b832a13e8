#include "server/evaluate/wanted_outputs.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sis {

absl::StatusOr<WantedOutputs> WantedOutputs::Parse(const v1::EvaluateRequest& request) {
  WantedOutputs wanted;
  if (request.outputs().empty()) wanted.bits_ = 1u << v1::ACCEPT_BITS;
  for (const int output : request.outputs()) {
    if (!v1::Output_IsValid(output) || output == v1::OUTPUT_UNSPECIFIED) {
      return absl::InvalidArgumentError(absl::StrCat("outputs: ", output, " is not an output"));
    }
    wanted.bits_ |= 1u << output;
  }
  return wanted;
}

bool WantedOutputs::NeedEveryRatio() const {
  return Has(v1::RATIOS) || Has(v1::LOG_RATIOS) || Has(v1::SURROGATES) || Has(v1::COEFFICIENTS);
}

std::vector<uint64_t> WantedOutputs::Sizes(uint64_t positions) const {
  std::vector<uint64_t> sizes;
  if (Has(v1::ACCEPT_BITS)) sizes.push_back((positions + 7) / 8);
  if (Has(v1::DECISIONS)) sizes.push_back(positions);
  for (const v1::Output floats : {v1::RATIOS, v1::LOG_RATIOS, v1::ACCEPTANCE_PROBABILITIES,
                                  v1::SURROGATES, v1::COEFFICIENTS}) {
    if (Has(floats)) sizes.push_back(positions * sizeof(float));
  }
  return sizes;
}

}  // namespace sis
