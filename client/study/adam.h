// The optimiser.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "client/study/layers.h"

namespace sis::study {

class Adam {
 public:
  Adam(size_t parameters, double second_decay, double weight_decay)
      : second_decay_(second_decay),
        weight_decay_(weight_decay),
        first_moments_(parameters),
        second_moments_(parameters) {}

  // scale multiplies the gradients first.
  void Step(double learning_rate, double scale, std::span<const float> gradients,
            std::span<float> parameters) {
    first_power_ *= kFirstDecay;
    second_power_ *= second_decay_;
    ApplyAdam({.scale = static_cast<float>(scale),
               .keep = static_cast<float>(1.0 - learning_rate * weight_decay_),
               .first_decay = static_cast<float>(kFirstDecay),
               .second_decay = static_cast<float>(second_decay_),
               .step = static_cast<float>(learning_rate / (1.0 - first_power_)),
               .second_correction = static_cast<float>(1.0 / (1.0 - second_power_))},
              parameters.size(), gradients.data(), first_moments_.data(), second_moments_.data(),
              parameters.data());
  }

 private:
  static constexpr double kFirstDecay = 0.9;
  const double second_decay_;
  const double weight_decay_;
  double first_power_ = 1.0;
  double second_power_ = 1.0;
  std::vector<float> first_moments_;
  std::vector<float> second_moments_;
};

inline double Norm(std::span<const float> gradients) {
  double sum = 0.0;
  for (const float gradient : gradients) sum += static_cast<double>(gradient) * gradient;
  return __builtin_sqrt(sum);
}

// What gradients of this norm are multiplied by, so that none is longer than `limit`; 0: no limit.
inline double ClipScale(double norm, double limit) {
  return limit > 0.0 && norm > limit ? limit / norm : 1.0;
}

}  // namespace sis::study
