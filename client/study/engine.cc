#include "client/study/engine.h"

#include <algorithm>
#include <cmath>

#include "client/study/random.h"

namespace sis::study {

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

static int Draw(std::span<const float> probabilities, double uniform) {
  double sum = 0.0;
  for (size_t i = 0; i + 1 < probabilities.size(); ++i) {
    sum += probabilities[i];
    if (uniform < sum) return static_cast<int>(i);
  }
  return static_cast<int>(probabilities.size()) - 1;
}

std::vector<float> Engine::Round(const Shape& shape, std::span<const float> parameters) const {
  std::vector<float> rounded(parameters.begin(), parameters.end());
  if (!round) return rounded;
  for (const Shape::Array& array : shape.arrays) {
    if (array.kind == Shape::Kind::kMatrix) {
      round(std::span(rounded).subspan(array.first, array.count));
    }
  }
  return rounded;
}

void AppendInput(const Task& task, std::span<const int> prompt, std::span<const int> response,
                 std::vector<int>& inputs) {
  inputs.insert(inputs.end(), prompt.begin(), prompt.end());
  const size_t read = task.response_length - 1;
  const size_t end = inputs.size() + read;
  const auto there = response.first(std::min(read, response.size()));
  inputs.insert(inputs.end(), there.begin(), there.end());
  inputs.resize(end, task.stop());
}

Responses Generator::Generate(std::span<const float> parameters, const Engine& engine,
                              std::span<const Problem> problems, size_t group, uint64_t seed,
                              Decoding decoding, size_t first) {
  const std::vector<float> rounded = engine.Round(shape_, parameters);
  const size_t length = task_.response_length;
  const size_t columns = shape_.padded_vocabulary();
  const size_t count = problems.size() * group;
  Responses result{.tokens = std::vector<int>(count * length, task_.stop()),
                   .lengths = std::vector<size_t>(count, length),
                   .log_probs = std::vector<float>(count * length * columns)};
  std::vector<int> prompts;
  for (const Problem& problem : problems) {
    prompts.insert(prompts.end(), problem.prompt.begin(), problem.prompt.end());
  }
  RouterNoise noise = {engine.router_deviation, HashOf({seed, 1}), first / group};
  prompts_.Forward(rounded, {problems.size(), 0, task_.prompt_length, 1}, prompts, noise);
  noise.first_sequence = first;
  responses_.CopyContext(prompts_, task_.prompt_length, group);
  std::vector<int> last(count);
  for (size_t t = 0; t < length; ++t) {
    for (size_t i = 0; i < count; ++i) {
      const Transformer& model = t == 0 ? prompts_ : responses_;
      const size_t row = t == 0 ? i / group : i;
      std::copy_n(model.log_probs(row, 0), columns,
                  result.log_probs.data() + (i * length + t) * columns);
      const std::span probabilities(model.probabilities(row, 0), shape_.vocabulary);
      last[i] =
          decoding == Decoding::kGreedy
              ? static_cast<int>(std::ranges::max_element(probabilities) - probabilities.begin())
              : Draw(probabilities, Uniform(HashOf({seed, 2, first + i, t})));
      if (t < result.lengths[i]) {
        result.tokens[i * length + t] = last[i];
        if (last[i] == task_.stop()) result.lengths[i] = t + 1;
      }
    }
    if (t + 1 < length) {
      responses_.Forward(rounded, {count, task_.prompt_length + t, 1, 1}, last, noise);
    }
  }
  return result;
}

double Generator::Accuracy(std::span<const float> parameters, size_t count, uint64_t seed,
                           Decoding decoding) {
  const std::vector<Problem> problems = task_.Draw(count, seed);
  const Responses responses = Generate(parameters, {}, problems, 1, seed, decoding);
  double right = 0.0;
  for (size_t i = 0; i < count; ++i) right += problems[i].Reward(responses.response(i));
  return right / static_cast<double>(count);
}

}  // namespace sis::study
