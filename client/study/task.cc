#include "client/study/task.h"

#include <algorithm>

namespace sis::study {
namespace {

// Digits of two numbers, least significant first; the answer is their sum.
Task Addition(int digits, int base) {
  const auto count = static_cast<size_t>(digits);
  const int stop = base + 2;
  const auto draw = [=](Random& random) {
    Problem problem{.prompt = std::vector<int>(2 * count + 2), .answer = {}, .careless = {}};
    int carry = 0;
    for (size_t d = 0; d < count; ++d) {
      const int left = problem.prompt[d] = random.Below(base);
      const int right = problem.prompt[count + 1 + d] = random.Below(base);
      problem.answer.push_back((left + right + carry) % base);
      problem.careless.push_back((left + right) % base);
      carry = (left + right + carry) / base;
    }
    problem.prompt[count] = base;
    problem.prompt[2 * count + 1] = base + 1;
    if (carry > 0) problem.answer.push_back(carry);
    problem.answer.push_back(stop);
    problem.careless.push_back(stop);
    return problem;
  };
  return {stop + 1, 2 * count + 2, count + 2, draw};
}

// Digits d_0, d_1, ...; the answer is y_i = d_0 + ... + d_i modulo the base.
Task RunningSum(int digits, int base) {
  const auto count = static_cast<size_t>(digits);
  const int stop = base + 1;
  const auto draw = [=](Random& random) {
    Problem problem;
    int sum = 0;
    for (size_t d = 0; d < count; ++d) {
      problem.prompt.push_back(random.Below(base));
      sum = (sum + problem.prompt[d]) % base;
      problem.answer.push_back(sum);
    }
    problem.prompt.push_back(base);
    problem.answer.push_back(stop);
    problem.careless = problem.answer;
    return problem;
  };
  return {stop + 1, count + 1, count + 1, draw};
}

}  // namespace

const std::map<std::string, TaskMaker> kTasks = {{"addition", Addition},
                                                 {"running_sum", RunningSum}};

float Problem::Reward(std::span<const int> response) const {
  return std::ranges::equal(answer, response.first(answer.size())) ? 1.0f : 0.0f;
}

std::vector<Problem> Task::Draw(size_t count, uint64_t seed) const {
  Random random(seed);
  std::vector<Problem> problems;
  problems.reserve(count);
  for (size_t i = 0; i < count; ++i) problems.push_back(draw(random));
  return problems;
}

}  // namespace sis::study
