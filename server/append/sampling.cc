#include "server/append/sampling.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sis {

absl::Status CheckSampling(const v1::Sampling& sampling) {
  using v1::Sampling;
  if (sampling.log_probs() != Sampling::LOG_PROBS_RAW &&
      sampling.log_probs() != Sampling::LOG_PROBS_PROCESSED) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.log_probs: ", static_cast<int>(sampling.log_probs()),
                     " is neither RAW nor PROCESSED"));
  }
  if (!(std::isfinite(sampling.temperature()) && sampling.temperature() > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.temperature: ", sampling.temperature(),
                                                   " is not finite and above 0"));
  }
  if (sampling.has_top_p() && !(sampling.top_p() > 0 && sampling.top_p() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.top_p: ", sampling.top_p(), " is not in (0, 1]"));
  }
  if (sampling.has_top_k() && sampling.top_k() < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.top_k: ", sampling.top_k(), " is below -1"));
  }
  if (sampling.has_min_p() && !(sampling.min_p() >= 0 && sampling.min_p() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.min_p: ", sampling.min_p(), " is not in [0, 1]"));
  }
  for (const auto& [field, penalty] :
       {std::pair("presence_penalty", sampling.presence_penalty()),
        std::pair("frequency_penalty", sampling.frequency_penalty())}) {
    if (std::isfinite(penalty)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.", field, ": ", penalty, " is not finite"));
  }
  if (sampling.has_repetition_penalty() &&
      !(std::isfinite(sampling.repetition_penalty()) && sampling.repetition_penalty() > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.repetition_penalty: ", sampling.repetition_penalty(),
                     " is not finite and above 0"));
  }
  if (sampling.log_probs() == Sampling::LOG_PROBS_PROCESSED) return absl::OkStatus();

  const auto refuse = [](absl::string_view field, auto value) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.", field, ": ", value,
                     " changes the distribution, so RAW log-probs are not the behaviour policy's"));
  };
  if (sampling.temperature() != 1) return refuse("temperature", sampling.temperature());
  if (sampling.has_top_p() && sampling.top_p() != 1) return refuse("top_p", sampling.top_p());
  if (sampling.top_k() > 0) return refuse("top_k", sampling.top_k());
  if (sampling.min_p() != 0) return refuse("min_p", sampling.min_p());
  if (sampling.presence_penalty() != 0) {
    return refuse("presence_penalty", sampling.presence_penalty());
  }
  if (sampling.frequency_penalty() != 0) {
    return refuse("frequency_penalty", sampling.frequency_penalty());
  }
  if (sampling.has_repetition_penalty() && sampling.repetition_penalty() != 1) {
    return refuse("repetition_penalty", sampling.repetition_penalty());
  }
  if (sampling.logit_bias()) return refuse("logit_bias", "true");
  if (sampling.grammar()) return refuse("grammar", "true");
  return absl::OkStatus();
}

}  // namespace sis
