// The engine that generates: the trainer's model, as far as its precision goes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/study/task.h"
#include "client/study/transformer.h"

namespace sis::study {

enum class EngineKind {
  kExact,
  // Matrices rounded to integers of `bits` bits, with one scale per matrix.
  kIntegerWeights,
  // Matrices rounded to floats with `bits` bits of mantissa: e4m3 has 3, e5m2 has 2. The range of
  // the exponent is not limited.
  kFloatWeights,
  // Normal noise of this deviation on the router's logits of mixtures.
  kNoisyRouter,
};

struct Engine {
  EngineKind kind = EngineKind::kExact;
  int bits = 0;
  float deviation = 0.0f;

  // The parameters that it computes with.
  std::vector<float> Round(const Shape& shape, std::span<const float> parameters) const;
};

// What an engine generated: `group` responses to every prompt, one after the other.
struct Responses {
  std::vector<int> tokens;       // [N, response_length]
  std::vector<size_t> lengths;   // [N], with the stop
  std::vector<float> log_probs;  // [N, response_length, padded vocabulary], as the engine saw them
};

enum class Decoding { kSample, kGreedy };

// Generates responses with models of its own, whose memory is used again.
class Generator {
 public:
  Generator(const Shape& shape, const Task& task)
      : shape_(shape), task_(task), prompts_(shape), responses_(shape) {}

  // The tokens are drawn at temperature 1 by uniforms that hang on seed, response and position
  // alone. log_probs are left out unless `with_log_probs`.
  Responses Generate(std::span<const float> parameters, const Engine& engine,
                     const Problems& problems, size_t group, uint64_t seed, Decoding decoding,
                     bool with_log_probs);

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
