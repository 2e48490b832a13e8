// What the model learns: answers that a program can check.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sis::study {

enum class TaskKind {
  // Digits of two numbers, least significant first; the answer is their sum.
  kAddition,
  // Digits d_0, d_1, ...; the answer is y_i = d_0 + ... + d_i modulo the base.
  kRunningSum,
};

class Task {
 public:
  Task(TaskKind kind, int digits, int base);

  int vocabulary() const { return stop() + 1; }
  // Ends an answer, and fills what follows.
  int stop() const { return kind_ == TaskKind::kAddition ? base_ + 2 : base_ + 1; }
  size_t prompt_length() const {
    return kind_ == TaskKind::kAddition ? 2 * digits_ + 2 : digits_ + 1;
  }
  // The most tokens of a response.
  size_t response_length() const {
    return kind_ == TaskKind::kAddition ? digits_ + 2 : digits_ + 1;
  }
  // Of a prompt and a response together.
  size_t context() const { return prompt_length() + response_length(); }

 private:
  friend class Problems;

  TaskKind kind_;
  size_t digits_;
  int base_;
};

// Prompts with their answers, random by the seed.
class Problems {
 public:
  Problems(const Task& task, size_t count, uint64_t seed);

  size_t count() const { return answer_lengths_.size(); }
  std::span<const int> prompts() const { return prompts_; }  // [count, prompt_length]
  std::span<const int> prompt(size_t i) const { return Row(prompts_, prompt_length_, i); }
  // [response_length]; the first answer_length(i) of them count, with the stop.
  std::span<const int> answer(size_t i) const { return Row(answers_, response_length_, i); }
  size_t answer_length(size_t i) const { return answer_lengths_[i]; }

  // What somebody would answer who forgets the carry, in the place of the right answer. Addition
  // only.
  void ForgetCarry(const Task& task, size_t i);

  // 1 if the response, [response_length], is right, else 0.
  float Reward(size_t i, std::span<const int> response) const;

 private:
  static std::span<const int> Row(const std::vector<int>& values, size_t length, size_t i) {
    return std::span<const int>(values).subspan(i * length, length);
  }

  size_t prompt_length_;
  size_t response_length_;
  std::vector<int> prompts_;
  std::vector<int> answers_;
  std::vector<size_t> answer_lengths_;
};

}  // namespace sis::study
