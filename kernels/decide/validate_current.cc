#include "kernels/decide/validate_current.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/block/slot_checker.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"

namespace sis {
namespace {

absl::Status ValidateSampledLogProbs(absl::string_view field, std::span<const float> log_probs,
                                     uint32_t first_position) {
  for (size_t i = 0; i < log_probs.size(); ++i) {
    if (IsLogProb(log_probs[i])) continue;
    return InvalidPosition(field, static_cast<uint32_t>(first_position + i),
                           absl::StrCat(log_probs[i], " is not a log-prob of at most 1/64"));
  }
  return absl::OkStatus();
}

absl::Status ValidateGathered(std::span<const uint8_t> counts, const CurrentView& current,
                              uint32_t first_position) {
  size_t used = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto position = static_cast<uint32_t>(first_position + i);
    float mass = 0.0f;
    for (size_t slot = 0; slot < counts[i]; ++slot) {
      const float log_prob = current.log_probs[used++];
      if (!IsLogProb(log_prob)) {
        return InvalidSlot("gathered.log_probs", position, slot,
                           absl::StrCat(log_prob, " is not a log-prob of at most 1/64"));
      }
      mass = mass + Exp32(log_prob);
    }
    if (!IsMass(mass)) {
      return InvalidPosition("gathered.log_probs", position,
                             absl::StrCat("probabilities sum to ", mass, ", above 1 + 1/64"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateReduced(const CurrentView& current, uint32_t first_position) {
  for (size_t i = 0; i < current.sampled_log_probs.size(); ++i) {
    const auto position = static_cast<uint32_t>(first_position + i);
    const float log_envelope = current.log_envelopes[i];
    if (!(log_envelope < std::numeric_limits<float>::infinity())) {
      return InvalidPosition("reduced.log_envelopes", position,
                             absl::StrCat(log_envelope, " is neither finite nor -inf"));
    }
    const float mass = current.covered_masses[i];
    if (!IsMass(mass)) {
      return InvalidPosition("reduced.covered_masses", position,
                             absl::StrCat(mass, " is not in [0, 1 + 1/64]"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateCurrent(const BlockRange& behavior, const CurrentView& current,
                             uint32_t first_position) {
  const absl::string_view form = current.reduced() ? "reduced" : "gathered";
  absl::Status status = ValidateSampledLogProbs(absl::StrCat(form, ".sampled_log_probs"),
                                                current.sampled_log_probs, first_position);
  if (!status.ok()) return status;
  return current.reduced() ? ValidateReduced(current, first_position)
                           : ValidateGathered(behavior.counts, current, first_position);
}

}  // namespace sis
