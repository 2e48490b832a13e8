#include "client/study/engine.h"

#include <algorithm>
#include <cmath>

#include "client/study/random.h"

namespace sis::study {
namespace {

void RoundToIntegers(std::span<float> matrix, int bits) {
  float largest = 0.0f;
  for (const float value : matrix) largest = std::max(largest, std::abs(value));
  if (largest == 0.0f) return;
  const float scale = (std::ldexp(1.0f, bits - 1) - 1.0f) / largest;
  for (float& value : matrix) value = std::round(value * scale) / scale;
}

void RoundToMantissa(std::span<float> matrix, int bits) {
  for (float& value : matrix) {
    int exponent = 0;
    const float mantissa = std::frexp(value, &exponent);
    value = std::ldexp(std::round(std::ldexp(mantissa, bits + 1)), exponent - bits - 1);
  }
}

int Largest(const float* values, size_t count) {
  return static_cast<int>(std::max_element(values, values + count) - values);
}

int Draw(const float* probabilities, size_t count, double uniform) {
  double sum = 0.0;
  for (size_t i = 0; i + 1 < count; ++i) {
    sum += probabilities[i];
    if (uniform < sum) return static_cast<int>(i);
  }
  return static_cast<int>(count) - 1;
}

}  // namespace

std::vector<float> Engine::Round(const Shape& shape, std::span<const float> parameters) const {
  std::vector<float> rounded(parameters.begin(), parameters.end());
  for (const Shape::Block& block : shape.matrices()) {
    const std::span<float> matrix = std::span(rounded).subspan(block.first, block.count);
    if (kind == EngineKind::kIntegerWeights) RoundToIntegers(matrix, bits);
    if (kind == EngineKind::kFloatWeights) RoundToMantissa(matrix, bits);
  }
  return rounded;
}

Responses Generator::Generate(std::span<const float> parameters, const Engine& engine,
                              const Problems& problems, size_t group, uint64_t seed,
                              Decoding decoding, bool with_log_probs) {
  const std::vector<float> rounded = engine.Round(shape_, parameters);
  const size_t prompt_length = task_.prompt_length();
  const size_t length = task_.response_length();
  const size_t columns = shape_.padded_vocabulary();
  const size_t count = problems.count() * group;
  Responses result;
  result.tokens.assign(count * length, task_.stop());
  result.lengths.assign(count, length);
  if (with_log_probs) result.log_probs.resize(count * length * columns);

  RouterNoise noise;
  if (engine.kind == EngineKind::kNoisyRouter) noise = {engine.deviation, HashOf({seed, 1})};
  prompts_.Forward(rounded, {problems.count(), 0, prompt_length, 1}, problems.prompts(), noise);
  responses_.CopyContext(prompts_, prompt_length, group);
  std::vector<int> last(count);
  for (size_t t = 0; t < length; ++t) {
    for (size_t i = 0; i < count; ++i) {
      const Transformer& model = t == 0 ? prompts_ : responses_;
      const size_t row = t == 0 ? i / group : i;
      if (with_log_probs) {
        std::copy_n(model.log_probs(row, 0), columns,
                    result.log_probs.data() + (i * length + t) * columns);
      }
      const float* probabilities = model.probabilities(row, 0);
      last[i] = decoding == Decoding::kGreedy
                    ? Largest(probabilities, shape_.vocabulary())
                    : Draw(probabilities, shape_.vocabulary(), Uniform(HashOf({seed, 2, i, t})));
      if (t < result.lengths[i]) {
        result.tokens[i * length + t] = last[i];
        if (last[i] == task_.stop()) result.lengths[i] = t + 1;
      }
    }
    if (t + 1 < length) {
      responses_.Forward(rounded, {count, prompt_length + t, 1, 1}, last, noise);
    }
  }
  return result;
}

double Generator::Accuracy(std::span<const float> parameters, size_t count, uint64_t seed,
                           Decoding decoding) {
  const Problems problems(task_, count, seed);
  const Responses responses =
      Generate(parameters, {}, problems, 1, seed, decoding, /*with_log_probs=*/false);
  double right = 0.0;
  for (size_t i = 0; i < count; ++i) {
    const size_t length = task_.response_length();
    right += problems.Reward(i, std::span(responses.tokens).subspan(i * length, length));
  }
  return right / static_cast<double>(count);
}

}  // namespace sis::study
