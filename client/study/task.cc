#include "client/study/task.h"

#include <algorithm>

#include "client/study/random.h"

namespace sis::study {

Task::Task(TaskKind kind, int digits, int base)
    : kind_(kind), digits_(static_cast<size_t>(digits)), base_(base) {}

Problems::Problems(const Task& task, size_t count, uint64_t seed)
    : prompt_length_(task.prompt_length()),
      response_length_(task.response_length()),
      prompts_(count * prompt_length_),
      answers_(count * response_length_, task.stop()),
      answer_lengths_(count) {
  Random random(seed);
  const size_t digits = task.digits_;
  for (size_t i = 0; i < count; ++i) {
    int* prompt = prompts_.data() + i * prompt_length_;
    int* answer = answers_.data() + i * response_length_;
    int carry = 0;
    if (task.kind_ == TaskKind::kAddition) {
      for (size_t d = 0; d < digits; ++d) {
        prompt[d] = random.Below(task.base_);
        prompt[digits + 1 + d] = random.Below(task.base_);
        const int sum = prompt[d] + prompt[digits + 1 + d] + carry;
        answer[d] = sum % task.base_;
        carry = sum / task.base_;
      }
      prompt[digits] = task.base_;
      prompt[2 * digits + 1] = task.base_ + 1;
      if (carry > 0) answer[digits] = carry;
      answer_lengths_[i] = digits + 1 + (carry > 0 ? 1 : 0);
    } else {
      for (size_t d = 0; d < digits; ++d) {
        prompt[d] = random.Below(task.base_);
        carry = (carry + prompt[d]) % task.base_;
        answer[d] = carry;
      }
      prompt[digits] = task.base_;
      answer_lengths_[i] = digits + 1;
    }
  }
}

void Problems::ForgetCarry(const Task& task, size_t i) {
  const int* prompt = prompts_.data() + i * prompt_length_;
  int* answer = answers_.data() + i * response_length_;
  std::fill_n(answer, response_length_, task.stop());
  for (size_t d = 0; d < task.digits_; ++d) {
    answer[d] = (prompt[d] + prompt[task.digits_ + 1 + d]) % task.base_;
  }
  answer_lengths_[i] = task.digits_ + 1;
}

float Problems::Reward(size_t i, std::span<const int> response) const {
  const std::span<const int> right = answer(i).first(answer_length(i));
  return std::equal(right.begin(), right.end(), response.begin()) ? 1.0f : 0.0f;
}

}  // namespace sis::study
