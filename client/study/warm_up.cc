#include "client/study/warm_up.h"

#include <algorithm>

#include "client/study/adam.h"
#include "client/study/engine.h"
#include "client/study/random.h"

namespace sis::study {
namespace {

constexpr size_t kBatch = 128;
constexpr int kMostSteps = 20000;
constexpr int kStepsPerCheck = 25;
constexpr int kRisingSteps = 100;  // of the learning rate

// Prompts and answers but for their last token, one after the other.
std::vector<int> Inputs(const Task& task, const Problems& problems) {
  const size_t length = task.context() - 1;
  std::vector<int> inputs;
  inputs.reserve(problems.count() * length);
  for (size_t i = 0; i < problems.count(); ++i) {
    const auto prompt = problems.prompt(i);
    const auto answer = problems.answer(i);
    inputs.insert(inputs.end(), prompt.begin(), prompt.end());
    inputs.insert(inputs.end(), answer.begin(), answer.end() - 1);
  }
  return inputs;
}

}  // namespace

double SupervisedLoss(const Shape& shape, const Task& task, const Problems& problems,
                      double smoothing, std::span<const float> parameters, Transformer& model,
                      std::span<float> gradients) {
  const size_t length = task.response_length();
  const size_t columns = shape.padded_vocabulary();
  model.Forward(parameters, {problems.count(), 0, task.context() - 1, length},
                Inputs(task, problems));
  size_t tokens = 0;
  for (size_t i = 0; i < problems.count(); ++i) tokens += problems.answer_length(i);
  std::vector<float> d_logits(problems.count() * length * columns);
  double loss = 0.0;
  for (size_t i = 0; i < problems.count(); ++i) {
    for (size_t t = 0; t < problems.answer_length(i); ++t) {
      const float* log_probs = model.log_probs(i, t);
      const float* probabilities = model.probabilities(i, t);
      float* d = d_logits.data() + (i * length + t) * columns;
      for (size_t v = 0; v < shape.vocabulary(); ++v) {
        const bool right = static_cast<int>(v) == problems.answer(i)[t];
        const double target =
            (right ? 1.0 - smoothing : 0.0) + smoothing / static_cast<double>(shape.vocabulary());
        if (target > 0.0) loss -= target * log_probs[v];
        d[v] = static_cast<float>((probabilities[v] - target) / static_cast<double>(tokens));
      }
    }
  }
  std::fill(gradients.begin(), gradients.end(), 0.0f);
  model.Backward(parameters, problems.count(), d_logits, gradients);
  return loss / static_cast<double>(tokens);
}

std::vector<float> WarmUp(const StartSettings& settings, uint64_t seed) {
  const Task task = settings.MakeTask();
  const Shape shape = settings.MakeShape();
  std::vector<float> parameters = shape.Initial(HashOf({seed, 10}));
  std::vector<float> gradients(shape.parameters());
  Transformer model(shape);
  Generator generator(shape, task);
  Adam adam(shape.parameters(), 0.999, 0.01);
  for (int step = 0; step < kMostSteps; ++step) {
    const auto now = static_cast<uint64_t>(step);
    Problems problems(task, kBatch, HashOf({seed, 11, now}));
    for (size_t i = 0; i < kBatch; ++i) {
      if (Uniform(HashOf({seed, 12, now, i})) < settings.forgotten_carries) {
        problems.ForgetCarry(task, i);
      }
    }
    SupervisedLoss(shape, task, problems, settings.smoothing, parameters, model, gradients);
    const double rise = std::min(1.0, (step + 1.0) / kRisingSteps);
    adam.Step(settings.learning_rate * rise, ClipScale(Norm(gradients), 1.0), gradients,
              parameters);
    if ((step + 1) % kStepsPerCheck != 0) continue;
    const double accuracy =
        generator.Accuracy(parameters, 512, HashOf({seed, 13, now}), Decoding::kSample);
    if (accuracy >= settings.accuracy) break;
  }
  return parameters;
}

}  // namespace sis::study
