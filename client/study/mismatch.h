// How an update is corrected for an engine that computes otherwise than the trainer, where the old
// log-probs are the trainer's own: by the ratio of both, old / engine, of tokens or of responses.
#pragma once

#include <cmath>
#include <span>

namespace sis::study {

struct MismatchWeight {
  enum class Kind {
    kNone,
    kTokenTruncation,  // min(ratio, limit): TIS (Yao et al., 2025)
    kSequenceMask,     // the product of a response's ratios, 0 if above the limit: TRL's default
  };

  Kind kind = Kind::kNone;
  double limit = 0.0;

  // Multiplies the coefficients of a response [n] by it. Log-probs [n] of the sampled tokens.
  void Apply(std::span<const float> old_log_probs, std::span<const float> engine_log_probs,
             std::span<float> coefficients) const {
    double sum = 0.0;
    for (size_t i = 0; i < coefficients.size(); ++i) {
      const double log_ratio = double{old_log_probs[i]} - double{engine_log_probs[i]};
      sum += log_ratio;
      if (kind == Kind::kTokenTruncation) {
        coefficients[i] *= static_cast<float>(std::fmin(std::exp(log_ratio), limit));
      }
    }
    if (kind != Kind::kSequenceMask) return;
    const double ratio = std::exp(sum);
    for (float& coefficient : coefficients) {
      coefficient *= ratio > limit ? 0.0f : static_cast<float>(ratio);
    }
  }
};

}  // namespace sis::study
