// What the model learns: answers that a program can check.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "client/study/random.h"

namespace sis::study {

struct Problem {
  std::vector<int> prompt;
  std::vector<int> answer;  // the right one, with the stop
  // What somebody answers who forgets the carry; the right answer where there is none.
  std::vector<int> careless;

  // 1 if the response, with anything behind its stop, is right, else 0.
  float Reward(std::span<const int> response) const;
};

struct Task {
  int vocabulary;
  size_t prompt_length;
  size_t response_length;  // the most tokens of a response
  std::function<Problem(Random&)> draw;

  // Ends an answer, and fills what follows.
  int stop() const { return vocabulary - 1; }
  // Of a prompt and a response together.
  size_t context() const { return prompt_length + response_length; }
  // Random by the seed.
  std::vector<Problem> Draw(size_t count, uint64_t seed) const;
};

// By name: tasks with numbers of so many digits to a base.
using TaskMaker = Task (*)(int digits, int base);
extern const std::map<std::string, TaskMaker> kTasks;

}  // namespace sis::study
