// The start of a run: a model that supervision has taught a little.
#pragma once

#include <cstdint>
#include <vector>

#include "client/study/task.h"
#include "client/study/transformer.h"

namespace sis::study {

struct StartSettings {
  TaskMaker task = kTasks.at("addition");
  int digits = 3;
  int base = 16;
  // Of the model: a multiple of 16.
  int width = 64;
  int layers = 2;
  bool experts = false;
  // Label smoothing of the cross-entropy.
  double smoothing = 0.0;
  // The share of answers that are careless ones.
  double forgotten_carries = 0.0;
  double learning_rate = 2e-3;
  // It ends when this share of 512 sampled answers is right.
  double accuracy = 0.3;

  Task MakeTask() const { return task(digits, base); }
  Shape MakeShape() const {
    const Task made = MakeTask();
    return Shape(static_cast<size_t>(made.vocabulary), made.context(), static_cast<size_t>(width),
                 static_cast<size_t>(layers), experts);
  }
};

// Cross-entropy of the answers, by token, and its gradients of the model's logits [problems,
// response_length, padded vocabulary]; as the warm-up minimises it.
double SupervisedLoss(const Shape& shape, const Task& task, std::span<const Problem> problems,
                      double smoothing, std::span<const float> parameters, Transformer& model,
                      std::vector<float>& d_logits);

// The parameters to start from. A pure function of its arguments.
std::vector<float> WarmUp(const StartSettings& settings, uint64_t seed);

}  // namespace sis::study
