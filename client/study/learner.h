// A model that learns from gradients of its logits, by Adam.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "client/study/layers.h"
#include "client/study/transformer.h"

namespace sis::study {

class Learner {
 public:
  Learner(const Shape& shape, double second_decay, double weight_decay)
      : model(shape),
        second_decay_(second_decay),
        weight_decay_(weight_decay),
        gradients_(shape.parameters),
        first_moments_(shape.parameters),
        second_moments_(shape.parameters) {}

  Transformer model;

  // One step of `parameters`, from which the model has computed the logits. Gradients longer than
  // `longest` are shortened to this norm; 0: none are. Returns their norm; a step that overflowed
  // is left out, as trainers do. d_logits: those of Transformer::Backward.
  double Step(size_t sequences, std::span<const float> d_logits, double learning_rate,
              double longest, std::span<float> parameters) {
    std::ranges::fill(gradients_, 0.0f);
    model.Backward(sequences, d_logits, gradients_);
    double squares = 0.0;
    for (const double gradient : gradients_) squares += gradient * gradient;
    const double norm = __builtin_sqrt(squares);
    if (!std::isfinite(norm)) return norm;
    first_power_ *= kFirstDecay;
    second_power_ *= second_decay_;
    const double scale = longest > 0.0 && norm > longest ? longest / norm : 1.0;
    BestOperations().apply_adam(
        {.scale = static_cast<float>(scale),
         .keep = static_cast<float>(1.0 - learning_rate * weight_decay_),
         .first_decay = static_cast<float>(kFirstDecay),
         .second_decay = static_cast<float>(second_decay_),
         .step = static_cast<float>(learning_rate / (1.0 - first_power_)),
         .second_correction = static_cast<float>(1.0 / (1.0 - second_power_))},
        parameters.size(), gradients_.data(), first_moments_.data(), second_moments_.data(),
        parameters.data());
    return norm;
  }

 private:
  static constexpr double kFirstDecay = 0.9;
  const double second_decay_;
  const double weight_decay_;
  double first_power_ = 1.0;
  double second_power_ = 1.0;
  std::vector<float> gradients_;
  std::vector<float> first_moments_;
  std::vector<float> second_moments_;
};

}  // namespace sis::study
