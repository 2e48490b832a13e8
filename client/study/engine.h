// The engine that generates: the trainer's model, as far as its precision goes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "client/study/task.h"
#include "client/study/transformer.h"

namespace sis::study {

struct Engine {
  // Rounds a matrix to what it computes with; none: the trainer's own.
  std::function<void(std::span<float>)> round;
  // Of normal noise on the router's logits of mixtures.
  float router_deviation = 0.0f;

  // The parameters that it computes with.
  std::vector<float> Round(const Shape& shape, std::span<const float> parameters) const;
};

// To integers of so many bits, with one scale for all.
void RoundToIntegers(std::span<float> matrix, int bits);
// To floats with so many bits of mantissa: e4m3 has 3, e5m2 has 2. The range of the exponent is not
// limited.
void RoundToMantissa(std::span<float> matrix, int bits);

// What an engine generated: `group` responses to every prompt, one after the other.
struct Responses {
  std::vector<int> tokens;       // [N, response_length]
  std::vector<size_t> lengths;   // [N], with the stop
  std::vector<float> log_probs;  // [N, response_length, padded vocabulary], as the engine saw them

  std::span<const int> response(size_t i) const {
    const size_t length = tokens.size() / lengths.size();
    return std::span(tokens).subspan(i * length, length);
  }
  // Those of further prompts.
  void Append(const Responses& more) {
    tokens.insert(tokens.end(), more.tokens.begin(), more.tokens.end());
    lengths.insert(lengths.end(), more.lengths.begin(), more.lengths.end());
    log_probs.insert(log_probs.end(), more.log_probs.begin(), more.log_probs.end());
  }
};

// Appends what a model reads to give the log-probs of a response: the prompt, and all tokens but
// the last. A response that is shorter than the task's are is filled with stops.
void AppendInput(const Task& task, std::span<const int> prompt, std::span<const int> response,
                 std::vector<int>& inputs);

enum class Decoding { kSample, kGreedy };

// Generates responses with models of its own, whose memory is used again.
class Generator {
 public:
  Generator(const Shape& shape, const Task& task)
      : shape_(shape), task_(task), prompts_(shape), responses_(shape) {}

  // The tokens are drawn at temperature 1 by uniforms that hang on seed, response and position
  // alone; `first` counts the responses that the seed has given before, so a rollout may be
  // generated in parts.
  Responses Generate(std::span<const float> parameters, const Engine& engine,
                     std::span<const Problem> problems, size_t group, uint64_t seed,
                     Decoding decoding = Decoding::kSample, size_t first = 0);

  // The share of right answers among one response to each of `count` problems.
  double Accuracy(std::span<const float> parameters, size_t count, uint64_t seed,
                  Decoding decoding);

 private:
  const Shape& shape_;
  const Task& task_;
  Transformer prompts_;
  Transformer responses_;
};

}  // namespace sis::study
