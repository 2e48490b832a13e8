#include "server/append/sampling.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

// A setting that changes the distribution unless it has its neutral value.
struct Setting {
  const char* field;
  double value;
  double neutral;
  bool valid;
  const char* law;
};

}  // namespace

absl::Status CheckSampling(const v1::Sampling& sampling) {
  if (sampling.log_probs() != v1::Sampling::LOG_PROBS_RAW &&
      sampling.log_probs() != v1::Sampling::LOG_PROBS_PROCESSED) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.log_probs: ", static_cast<int>(sampling.log_probs()),
                     " is neither RAW nor PROCESSED"));
  }
  const double temperature = sampling.temperature();
  const double top_p = sampling.has_top_p() ? sampling.top_p() : 1;
  // An engine's 0 and -1 mean that all tokens are kept.
  const double top_k = sampling.top_k();
  const double min_p = sampling.min_p();
  const double presence = sampling.presence_penalty();
  const double frequency = sampling.frequency_penalty();
  const double repetition = sampling.has_repetition_penalty() ? sampling.repetition_penalty() : 1;
  const Setting settings[] = {
      {"temperature", temperature, 1, std::isfinite(temperature) && temperature > 0,
       "finite and above 0"},
      {"top_p", top_p, 1, top_p > 0 && top_p <= 1, "in (0, 1]"},
      {"top_k", top_k, top_k > 0 ? 0 : top_k, top_k >= -1, "at least -1"},
      {"min_p", min_p, 0, min_p >= 0 && min_p <= 1, "in [0, 1]"},
      {"presence_penalty", presence, 0, std::isfinite(presence), "finite"},
      {"frequency_penalty", frequency, 0, std::isfinite(frequency), "finite"},
      {"repetition_penalty", repetition, 1, std::isfinite(repetition) && repetition > 0,
       "finite and above 0"},
      {"logit_bias", static_cast<double>(sampling.logit_bias()), 0, true, ""},
      {"grammar", static_cast<double>(sampling.grammar()), 0, true, ""}};
  for (const Setting& setting : settings) {
    if (setting.valid) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.", setting.field, ": ", setting.value, " is not ", setting.law));
  }
  for (const Setting& setting : settings) {
    if (sampling.log_probs() == v1::Sampling::LOG_PROBS_PROCESSED) break;
    if (setting.value == setting.neutral) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.", setting.field, ": ", setting.value,
                     " changes the distribution, so RAW log-probs are not the behaviour policy's"));
  }
  return absl::OkStatus();
}

}  // namespace sis
