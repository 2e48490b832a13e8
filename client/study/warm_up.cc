#include "client/study/warm_up.h"

#include <algorithm>

#include "client/study/engine.h"
#include "client/study/learner.h"
#include "client/study/random.h"

namespace sis::study {
namespace {

constexpr size_t kBatch = 128;
constexpr int kMostSteps = 20000;
constexpr int kStepsPerCheck = 25;
constexpr int kRisingSteps = 100;  // of the learning rate

}  // namespace

double SupervisedLoss(const Shape& shape, const Task& task, std::span<const Problem> problems,
                      double smoothing, std::span<const float> parameters, Transformer& model,
                      std::vector<float>& d_logits) {
  const size_t columns = shape.padded_vocabulary();
  std::vector<int> inputs;
  size_t tokens = 0;
  for (const Problem& problem : problems) {
    AppendInput(task, problem.prompt, problem.answer, inputs);
    tokens += problem.answer.size();
  }
  model.Forward(parameters, {problems.size(), 0, task.context() - 1, task.response_length}, inputs);
  d_logits.assign(problems.size() * task.response_length * columns, 0.0f);
  double loss = 0.0;
  for (size_t i = 0; i < problems.size(); ++i) {
    for (size_t t = 0; t < problems[i].answer.size(); ++t) {
      const float* log_probs = model.log_probs(i, t);
      const float* probabilities = model.probabilities(i, t);
      float* d = d_logits.data() + (i * task.response_length + t) * columns;
      for (size_t v = 0; v < shape.vocabulary; ++v) {
        const bool right = static_cast<int>(v) == problems[i].answer[t];
        const double target =
            (right ? 1.0 - smoothing : 0.0) + smoothing / static_cast<double>(shape.vocabulary);
        if (target > 0.0) loss -= target * log_probs[v];
        d[v] = static_cast<float>((probabilities[v] - target) / static_cast<double>(tokens));
      }
    }
  }
  return loss / static_cast<double>(tokens);
}

std::vector<float> WarmUp(const StartSettings& settings, uint64_t seed) {
  const Task task = settings.MakeTask();
  const Shape shape = settings.MakeShape();
  std::vector<float> parameters = shape.Initial(HashOf({seed, 10}));
  std::vector<float> d_logits;
  Generator generator(shape, task);
  Learner learner(shape, 0.999, 0.01);
  for (int step = 0; step < kMostSteps; ++step) {
    const auto now = static_cast<uint64_t>(step);
    std::vector<Problem> problems = task.Draw(kBatch, HashOf({seed, 11, now}));
    for (size_t i = 0; i < kBatch; ++i) {
      if (Uniform(HashOf({seed, 12, now, i})) < settings.forgotten_carries) {
        problems[i].answer = problems[i].careless;
      }
    }
    SupervisedLoss(shape, task, problems, settings.smoothing, parameters, learner.model, d_logits);
    const double rise = std::min(1.0, (step + 1.0) / kRisingSteps);
    learner.Step(kBatch, d_logits, settings.learning_rate * rise, 1.0, parameters);
    if ((step + 1) % kStepsPerCheck != 0) continue;
    const double accuracy =
        generator.Accuracy(parameters, 512, HashOf({seed, 13, now}), Decoding::kSample);
    if (accuracy >= settings.accuracy) break;
  }
  return parameters;
}

}  // namespace sis::study
