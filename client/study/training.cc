#include "client/study/training.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <utility>

#include "client/study/adam.h"
#include "client/study/random.h"
#include "kernels/numerics/log_prob.h"

namespace sis::study {
namespace {

constexpr size_t kGroup = 8;          // responses to a prompt
constexpr size_t kForwardBatch = 64;  // responses, where old log-probs are recomputed
// Of the held-out problems: the same for all runs.
constexpr uint64_t kSampledSeed = 4712;
constexpr uint64_t kGreedySeed = 4711;

// Every prompt's responses: (reward - mean) / deviation, as in GRPO.
std::vector<float> GroupAdvantages(std::span<const float> rewards) {
  std::vector<float> advantages(rewards.size());
  for (size_t first = 0; first < rewards.size(); first += kGroup) {
    double mean = 0.0;
    for (size_t i = 0; i < kGroup; ++i) mean += rewards[first + i] / double{kGroup};
    double squares = 0.0;
    for (size_t i = 0; i < kGroup; ++i) {
      squares += (rewards[first + i] - mean) * (rewards[first + i] - mean);
    }
    const double deviation = __builtin_sqrt(squares / (kGroup - 1));
    for (size_t i = 0; i < kGroup; ++i) {
      advantages[first + i] = static_cast<float>((rewards[first + i] - mean) / (deviation + 1e-4));
    }
  }
  return advantages;
}

// A rollout on its way into mini-batches.
struct Rollout {
  Problems problems;
  Responses responses;
  std::vector<float> rewards;
  std::vector<float> advantages;
  Records records;
};

class Trainer {
 public:
  Trainer(const StartSettings& start, const CellSettings& cell, const Arm& arm, uint64_t seed,
          DecisionMaker& decisions, std::vector<float>& parameters)
      : cell_(cell),
        arm_(arm),
        seed_(seed),
        task_(start.MakeTask()),
        shape_(start.MakeShape()),
        decisions_(decisions),
        parameters_(parameters),
        gradients_(shape_.parameters()),
        model_(shape_),
        generator_(shape_, task_),
        adam_(shape_.parameters(), 0.99, 0.0) {}

  RunResult Run();

 private:
  Rollout Generate(uint64_t rollout, std::span<const float> behavior);
  // Replaces what the engine said by what the trainer computes from the same weights.
  void Recompute(std::span<const float> behavior, Rollout& rollout);
  Records Record(uint64_t number, const Rollout& rollout) const;
  // Prompts and responses but for the last token.
  std::vector<int> Inputs(const Rollout& rollout, std::span<const size_t> responses) const;
  void Update(const Rollout& rollout, std::vector<size_t> responses);
  MiniBatch Gather(const Rollout& rollout, const std::vector<size_t>& responses) const;
  void CountUpdate(const Rollout& rollout, const MiniBatch& batch, const Decided& decided);

  const CellSettings& cell_;
  const Arm& arm_;
  const uint64_t seed_;
  const Task task_;
  const Shape shape_;
  DecisionMaker& decisions_;
  std::vector<float>& parameters_;
  std::vector<float> gradients_;
  Transformer model_;
  Generator generator_;
  Adam adam_;
  uint64_t steps_ = 0;

  // Sums over the run.
  RunResult result_;
  double tokens_ = 0.0;
  double responses_ = 0.0;
  double pushed_tokens_ = 0.0;
  double entropy_ = 0.0;  // of the rollout at hand
  double entropy_tokens_ = 0.0;
};

RunResult Trainer::Run() {
  std::deque<std::vector<float>> history;
  std::vector<double> rewards;
  const size_t last_sixth = cell_.rollouts - std::max<size_t>(1, cell_.rollouts / 6);
  for (size_t r = 0; r < cell_.rollouts; ++r) {
    history.push_back(parameters_);
    if (history.size() > cell_.lag + 1) history.pop_front();
    const Rollout rollout = Generate(r, history.front());
    rewards.push_back(std::accumulate(rollout.rewards.begin(), rollout.rewards.end(), 0.0) /
                      static_cast<double>(rollout.rewards.size()));
    decisions_.Record(rollout.records);
    if (r == last_sixth) entropy_ = entropy_tokens_ = 0.0;
    std::vector<size_t> order(rollout.rewards.size());
    std::iota(order.begin(), order.end(), size_t{0});
    Random random(HashOf({seed_, 32, r}));
    for (size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i], order[static_cast<size_t>(random.Below(static_cast<int>(i) + 1))]);
    }
    const size_t size = order.size() / cell_.updates;
    for (size_t u = 0; u < cell_.updates; ++u) {
      const auto first = order.begin() + static_cast<std::ptrdiff_t>(u * size);
      Update(rollout, {first, first + static_cast<std::ptrdiff_t>(size)});
    }
  }
  const double count = static_cast<double>(rewards.size());
  result_.mean_reward = std::accumulate(rewards.begin(), rewards.end(), 0.0) / count;
  for (size_t i = 0; i < kCurvePoints; ++i) {
    const size_t first = i * rewards.size() / kCurvePoints;
    const size_t end = std::max(first + 1, (i + 1) * rewards.size() / kCurvePoints);
    double sum = 0.0;
    for (size_t r = first; r < end; ++r) sum += rewards[r];
    result_.curve.push_back(sum / static_cast<double>(end - first));
  }
  result_.accept_rate /= std::max(1.0, tokens_);
  result_.d /= std::max(1.0, responses_);
  result_.d_sis /= std::max(1.0, responses_);
  result_.zeroed /= std::max(1.0, pushed_tokens_);
  result_.entropy = entropy_ / std::max(1.0, entropy_tokens_);
  result_.final_reward =
      generator_.Accuracy(parameters_, cell_.held_out, kSampledSeed, Decoding::kSample);
  result_.final_greedy =
      generator_.Accuracy(parameters_, cell_.held_out, kGreedySeed, Decoding::kGreedy);
  return result_;
}

Rollout Trainer::Generate(uint64_t number, std::span<const float> behavior) {
  const size_t length = task_.response_length();
  Problems problems(task_, cell_.prompts, HashOf({seed_, 30, number}));
  Responses responses = generator_.Generate(behavior, cell_.engine, problems, kGroup,
                                            HashOf({seed_, 31, number}), Decoding::kSample,
                                            /*with_log_probs=*/true);
  Rollout rollout{std::move(problems), std::move(responses), {}, {}, {}};
  for (size_t i = 0; i < rollout.responses.lengths.size(); ++i) {
    rollout.rewards.push_back(rollout.problems.Reward(
        i / kGroup, std::span(rollout.responses.tokens).subspan(i * length, length)));
  }
  rollout.advantages = GroupAdvantages(rollout.rewards);
  if (cell_.recomputed) Recompute(behavior, rollout);
  rollout.records = Record(number, rollout);
  return rollout;
}

void Trainer::Recompute(std::span<const float> behavior, Rollout& rollout) {
  const size_t row = task_.response_length() * shape_.padded_vocabulary();
  std::vector<size_t> responses;
  for (size_t first = 0; first < rollout.rewards.size(); first += responses.size()) {
    responses.resize(std::min(kForwardBatch, rollout.rewards.size() - first));
    std::iota(responses.begin(), responses.end(), first);
    model_.Forward(behavior, {responses.size(), 0, task_.context() - 1, task_.response_length()},
                   Inputs(rollout, responses));
    std::copy_n(model_.log_probs().begin(), responses.size() * row,
                rollout.responses.log_probs.begin() + static_cast<std::ptrdiff_t>(first * row));
  }
}

Records Trainer::Record(uint64_t number, const Rollout& rollout) const {
  const size_t length = task_.response_length();
  const size_t columns = shape_.padded_vocabulary();
  const auto top_k = static_cast<size_t>(cell_.top_k);
  const size_t rows = rollout.rewards.size() * length;
  Records records{.rollout = number,
                  .top_k = cell_.top_k,
                  .length = length,
                  .lengths = rollout.responses.lengths,
                  .sampled_ids = {rollout.responses.tokens.begin(), rollout.responses.tokens.end()},
                  .sampled_log_probs = std::vector<float>(rows),
                  .ids = std::vector<int32_t>(rows * top_k),
                  .log_probs = std::vector<float>(rows * top_k)};
  std::vector<int32_t> ids(shape_.vocabulary());
  for (size_t i = 0; i < rollout.rewards.size(); ++i) {
    for (size_t t = 0; t < records.lengths[i]; ++t) {
      const size_t r = i * length + t;
      const float* log_probs = rollout.responses.log_probs.data() + r * columns;
      records.sampled_log_probs[r] = log_probs[records.sampled_ids[r]];
      std::iota(ids.begin(), ids.end(), 0);
      std::partial_sort(ids.begin(), ids.begin() + cell_.top_k, ids.end(),
                        [&](int32_t a, int32_t b) {
                          return log_probs[a] != log_probs[b] ? log_probs[a] > log_probs[b] : a < b;
                        });
      for (size_t slot = 0; slot < top_k; ++slot) {
        records.ids[r * top_k + slot] = ids[slot];
        records.log_probs[r * top_k + slot] = log_probs[ids[slot]];
      }
    }
  }
  return records;
}

std::vector<int> Trainer::Inputs(const Rollout& rollout, std::span<const size_t> responses) const {
  const size_t length = task_.response_length();
  std::vector<int> inputs;
  inputs.reserve(responses.size() * (task_.context() - 1));
  for (const size_t i : responses) {
    const auto prompt = rollout.problems.prompt(i / kGroup);
    const auto response = std::span(rollout.responses.tokens).subspan(i * length, length - 1);
    inputs.insert(inputs.end(), prompt.begin(), prompt.end());
    inputs.insert(inputs.end(), response.begin(), response.end());
  }
  return inputs;
}

MiniBatch Trainer::Gather(const Rollout& rollout, const std::vector<size_t>& responses) const {
  const Records& records = rollout.records;
  const auto top_k = static_cast<size_t>(records.top_k);
  MiniBatch batch{steps_, responses, {}, {}, {}};
  for (size_t i = 0; i < responses.size(); ++i) {
    for (size_t t = 0; t < records.lengths[responses[i]]; ++t) {
      const size_t row = responses[i] * records.length + t;
      const float* log_probs = model_.log_probs(i, t);
      batch.sampled_log_probs.push_back(log_probs[records.sampled_ids[row]]);
      for (size_t slot = 0; slot < top_k; ++slot) {
        batch.log_probs.push_back(log_probs[records.ids[row * top_k + slot]]);
      }
      batch.advantages.push_back(rollout.advantages[responses[i]]);
    }
  }
  return batch;
}

void Trainer::Update(const Rollout& rollout, std::vector<size_t> responses) {
  // Those that have a gradient first.
  const auto pushed_end = std::stable_partition(
      responses.begin(), responses.end(), [&](size_t i) { return rollout.advantages[i] != 0.0f; });
  const auto pushed = static_cast<size_t>(pushed_end - responses.begin());
  if (arm_.leaves_out_equal_groups) responses.resize(std::max<size_t>(pushed, 1));
  model_.Forward(parameters_, {responses.size(), 0, task_.context() - 1, task_.response_length()},
                 Inputs(rollout, responses));
  const MiniBatch batch = Gather(rollout, responses);
  const Decided decided = decisions_.Decide(batch);
  CountUpdate(rollout, batch, decided);

  const size_t columns = shape_.padded_vocabulary();
  const size_t length = task_.response_length();
  const auto tokens = static_cast<float>(batch.sampled_log_probs.size());
  std::vector<float> d_logits(pushed * length * columns);
  size_t at = 0;
  for (size_t i = 0; i < pushed; ++i) {
    for (size_t t = 0; t < rollout.records.lengths[responses[i]]; ++t, ++at) {
      const float weight = decided.coefficients[at] * batch.advantages[at] / tokens;
      const float* probabilities = model_.probabilities(i, t);
      float* d = d_logits.data() + (i * length + t) * columns;
      for (size_t v = 0; v < columns; ++v) d[v] = weight * probabilities[v];
      d[rollout.records.sampled_ids[responses[i] * length + t]] -= weight;
    }
  }
  std::fill(gradients_.begin(), gradients_.end(), 0.0f);
  if (pushed > 0) model_.Backward(parameters_, pushed, d_logits, gradients_);
  const double norm = Norm(gradients_);
  ++steps_;
  // As trainers do: a step that overflowed is left out.
  if (!std::isfinite(norm)) return;
  result_.largest_gradient = std::max(result_.largest_gradient, norm);
  adam_.Step(cell_.learning_rate, ClipScale(norm, cell_.gradient_clip), gradients_, parameters_);
}

void Trainer::CountUpdate(const Rollout& rollout, const MiniBatch& batch, const Decided& decided) {
  responses_ += static_cast<double>(batch.responses.size());
  tokens_ += static_cast<double>(batch.sampled_log_probs.size());
  size_t at = 0;
  for (size_t i = 0; i < batch.responses.size(); ++i) {
    const size_t response = batch.responses[i];
    for (size_t t = 0; t < rollout.records.lengths[response]; ++t, ++at) {
      const size_t row = response * rollout.records.length + t;
      result_.accept_rate += decided.decisions[at] == Decision::kAccepted ? 1.0 : 0.0;
      result_.d += std::abs(batch.sampled_log_probs[at] - rollout.records.sampled_log_probs[row]);
      result_.d_sis += std::abs(decided.log_modified_ratios[at]);
      if (batch.advantages[at] != 0.0f) {
        pushed_tokens_ += 1.0;
        result_.zeroed += decided.coefficients[at] == 0.0f ? 1.0 : 0.0;
      }
      const float* log_probs = model_.log_probs(i, t);
      const float* probabilities = model_.probabilities(i, t);
      for (size_t v = 0; v < shape_.vocabulary(); ++v) {
        entropy_ -= static_cast<double>(probabilities[v]) * log_probs[v];
      }
      entropy_tokens_ += 1.0;
    }
  }
}

}  // namespace

RunResult Train(const StartSettings& start, const CellSettings& cell, const Arm& arm, uint64_t seed,
                DecisionMaker& decisions, std::vector<float>& parameters) {
  return Trainer(start, cell, arm, seed, decisions, parameters).Run();
}

}  // namespace sis::study
