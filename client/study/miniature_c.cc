// The study's model, task and engine for other languages: client/study/miniature.py calls these.
//
// Arrays are row-major. A miniature belongs to one thread at a time.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "client/study/adam.h"
#include "client/study/engine.h"
#include "client/study/warm_up.h"

namespace {

using sis::study::Adam;
using sis::study::Decoding;
using sis::study::Engine;
using sis::study::EngineKind;
using sis::study::Generator;
using sis::study::Problems;
using sis::study::Responses;
using sis::study::Shape;
using sis::study::StartSettings;
using sis::study::Task;
using sis::study::Transformer;

// Of the gradients, as in the study.
constexpr double kLongestNorm = 1.0;

struct Miniature {
  explicit Miniature(const StartSettings& start)
      : task(start.MakeTask()),
        shape(start.MakeShape()),
        model(shape),
        generator(shape, task),
        adam(shape.parameters(), 0.99, 0.0),
        gradients(shape.parameters()) {}

  size_t vocabulary() const { return shape.vocabulary(); }
  size_t parameters() const { return shape.parameters(); }
  size_t length() const { return task.response_length(); }

  const Task task;
  const Shape shape;
  Transformer model;
  Generator generator;
  Adam adam;
  std::vector<float> gradients;
};

// Rows of logits or log-probs are padded within the model.
void CopyRows(size_t rows, size_t count, const float* from, size_t from_row, float* to,
              size_t to_row) {
  for (size_t i = 0; i < rows; ++i) std::copy_n(from + i * from_row, count, to + i * to_row);
}

}  // namespace

extern "C" {

// Adds hexadecimal numbers of so many digits.
Miniature* sis_miniature_new(int digits) {
  StartSettings start;
  start.digits = digits;
  return new Miniature(start);
}
void sis_miniature_delete(Miniature* miniature) { delete miniature; }

uint64_t sis_miniature_vocabulary(const Miniature* m) { return m->vocabulary(); }
uint64_t sis_miniature_prompt_length(const Miniature* m) { return m->task.prompt_length(); }
uint64_t sis_miniature_response_length(const Miniature* m) { return m->length(); }
uint64_t sis_miniature_parameters(const Miniature* m) { return m->parameters(); }

// Supervision until this share of the answers is right.
void sis_miniature_warm_up(int digits, uint64_t seed, double accuracy, float* parameters) {
  StartSettings start;
  start.digits = digits;
  start.accuracy = accuracy;
  std::ranges::copy(sis::study::WarmUp(start, seed), parameters);
}

// prompts [count, prompt_length].
void sis_miniature_prompts(const Miniature* m, uint64_t problems, uint64_t count,
                           int32_t* prompts) {
  std::ranges::copy(Problems(m->task, count, problems).prompts(), prompts);
}

// responses [count * group, response_length]: those to one prompt one after the other.
void sis_miniature_rewards(const Miniature* m, uint64_t problems, uint64_t count, uint64_t group,
                           const int32_t* responses, float* rewards) {
  const Problems made(m->task, count, problems);
  for (size_t i = 0; i < count * group; ++i) {
    rewards[i] = made.Reward(i / group, std::span(responses + i * m->length(), m->length()));
  }
}

// From an engine whose weights have so many bits; 0: the trainer's. tokens and lengths [count *
// group, response_length] and [count * group], log_probs [count * group, response_length,
// vocabulary].
void sis_miniature_generate(Miniature* m, const float* parameters, int bits, uint64_t problems,
                            uint64_t count, uint64_t group, uint64_t seed, int32_t* tokens,
                            int64_t* lengths, float* log_probs) {
  Engine engine;
  if (bits > 0) engine = {EngineKind::kIntegerWeights, bits};
  const Responses responses =
      m->generator.Generate(std::span(parameters, m->parameters()), engine,
                            Problems(m->task, count, problems), group, seed, Decoding::kSample,
                            /*with_log_probs=*/true);
  std::ranges::copy(responses.tokens, tokens);
  std::ranges::copy(responses.lengths, lengths);
  CopyRows(responses.tokens.size(), m->vocabulary(), responses.log_probs.data(),
           m->shape.padded_vocabulary(), log_probs, m->vocabulary());
}

// inputs [count, prompt_length + response_length - 1], log_probs [count, response_length,
// vocabulary].
void sis_miniature_log_probs(Miniature* m, const float* parameters, uint64_t count,
                             const int32_t* inputs, float* log_probs) {
  const size_t row = m->task.context() - 1;
  m->model.Forward(std::span(parameters, m->parameters()), {count, 0, row, m->length()},
                   std::span(inputs, count * row));
  CopyRows(count * m->length(), m->vocabulary(), m->model.log_probs().data(),
           m->shape.padded_vocabulary(), log_probs, m->vocabulary());
}

// One step of the optimiser, from the gradients of the logits that the last call of
// sis_miniature_log_probs computed: d_logits [count, response_length, vocabulary].
void sis_miniature_step(Miniature* m, double learning_rate, uint64_t count, const float* d_logits,
                        float* parameters) {
  const size_t rows = count * m->length();
  std::vector<float> padded(rows * m->shape.padded_vocabulary());
  CopyRows(rows, m->vocabulary(), d_logits, m->vocabulary(), padded.data(),
           m->shape.padded_vocabulary());
  std::ranges::fill(m->gradients, 0.0f);
  const std::span<float> all(parameters, m->parameters());
  m->model.Backward(all, count, padded, m->gradients);
  const double scale = sis::study::ClipScale(sis::study::Norm(m->gradients), kLongestNorm);
  m->adam.Step(learning_rate, scale, m->gradients, all);
}

}  // extern "C"
