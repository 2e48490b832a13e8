// The study's training for other languages: client/study/miniature.py calls these.
//
// Settings are words as in cells.txt. Arrays are row-major.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "client/study/settings.h"
#include "client/study/training.h"

namespace sis::study {
namespace {

// Settings that must be valid where they are used.
struct Settings {
  Settings(const char* start_words, const char* cell_words) : status(Set(start_words, start)) {
    if (status.ok()) status = Set(cell_words, start, cell);
  }
  std::vector<float> Copy(const float* parameters) const {
    return {parameters, parameters + start.MakeShape().parameters};
  }

  StartSettings start;
  CellSettings cell;
  absl::Status status;
};

// One step after the other.
struct Steps {
  Steps(const Settings& of_run, uint64_t seed, const float* parameters)
      : settings(of_run), trainer(settings.start, settings.cell, seed, settings.Copy(parameters)) {}

  const Settings settings;
  Trainer trainer;
  MiniBatch batch;
};

}  // namespace

extern "C" {

// What is wrong with these settings, null if nothing is: to be asked before they are used. The text
// is there until the thread asks again. sizes [7], if they are valid: see miniature.py.
const char* sis_study_check(const char* start, const char* cell, uint64_t* sizes) {
  thread_local std::string wrong;
  const Settings settings(start, cell);
  wrong = std::string(settings.status.message());
  if (!settings.status.ok()) return wrong.c_str();
  const Task task = settings.start.MakeTask();
  const size_t all[] = {settings.start.MakeShape().parameters,
                        static_cast<size_t>(task.vocabulary),
                        task.response_length,
                        settings.cell.rollouts,
                        settings.cell.prompts * kGroup,
                        settings.cell.updates,
                        static_cast<size_t>(settings.cell.top_k)};
  std::ranges::copy(all, sizes);
  return nullptr;
}

// The parameters to start from.
void sis_study_warm_up(const char* start, uint64_t seed, float* parameters) {
  std::ranges::copy(WarmUp(Settings(start, "").start, seed), parameters);
}

// A whole run.
void sis_study_train(const char* start, const char* cell, uint64_t seed, float* parameters,
                     RunResult* result) {
  const Settings settings(start, cell);
  std::vector<float> trained = settings.Copy(parameters);
  *result = Train(settings.start, settings.cell, seed, trained);
  std::ranges::copy(trained, parameters);
}

// A run step by step, for one thread at a time.
Steps* sis_study_begin(const char* start, const char* cell, uint64_t seed,
                       const float* parameters) {
  return new Steps(Settings(start, cell), seed, parameters);
}
void sis_study_end(Steps* steps) { delete steps; }

// The next rollout, of N responses: lengths [N], the sampled ids and log-probs [N, stride], those
// of the K most probable tokens [N, stride, K]; a stride of at least response_length. What is
// behind a response stays as it was. Returns the mean reward.
double sis_study_generate(Steps* steps, uint64_t stride, int64_t* lengths, int32_t* sampled_ids,
                          float* sampled_log_probs, int32_t* ids, float* log_probs) {
  const Records& records = steps->trainer.Generate();
  std::ranges::copy(records.lengths, lengths);
  const auto top_k = static_cast<size_t>(records.top_k);
  // `width` values a position.
  const auto write = [&records, stride](const auto& values, size_t width, auto* array) {
    for (size_t i = 0; i < records.lengths.size(); ++i) {
      std::copy_n(values.begin() + i * records.length * width, records.lengths[i] * width,
                  array + i * stride * width);
    }
  };
  write(records.sampled_ids, 1, sampled_ids);
  write(records.sampled_log_probs, 1, sampled_log_probs);
  write(records.ids, top_k, ids);
  write(records.log_probs, top_k, log_probs);
  return steps->trainer.mean_reward();
}

// A mini-batch of it: which responses, and of their n tokens the log-probs at the K recorded ids
// [n, K], those of the sampled ids [n], and the advantages [n]. Returns n.
uint64_t sis_study_gather(Steps* steps, uint64_t update, int64_t* responses, float* log_probs,
                          float* sampled_log_probs, float* advantages) {
  steps->batch = steps->trainer.Gather(update);
  std::ranges::copy(steps->batch.responses, responses);
  std::ranges::copy(steps->batch.log_probs, log_probs);
  std::ranges::copy(steps->batch.sampled_log_probs, sampled_log_probs);
  std::ranges::copy(steps->batch.advantages, advantages);
  return steps->batch.advantages.size();
}

// The step from this mini-batch.
void sis_study_update(Steps* steps, const float* coefficients) {
  steps->trainer.Update(steps->batch, {coefficients, steps->batch.advantages.size()});
}

}  // extern "C"

}  // namespace sis::study
