#include "client/study/training.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "client/study/kernel_decisions.h"
#include "client/study/random.h"
#include "kernels/records/mass_cut.h"

namespace sis::study {
namespace {

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

template <typename Value>
double Mean(std::span<const Value> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

Trainer::Trainer(const StartSettings& start, const CellSettings& cell, uint64_t seed,
                 std::vector<float> parameters)
    : cell_(cell),
      seed_(seed),
      task_(start.MakeTask()),
      shape_(start.MakeShape()),
      parameters_(std::move(parameters)),
      generator_(shape_, task_),
      learner_(shape_, 0.99, 0.0),
      model_(learner_.model) {}

const Records& Trainer::Generate() {
  const uint64_t number = rewards_.size();
  history_.push_back(parameters_);
  if (history_.size() > cell_.lag + 1) history_.pop_front();
  problems_ = task_.Draw(cell_.prompts, HashOf({seed_, 30, number}));
  responses_ = {};
  const std::vector<Part> parts = Parts(number);
  for (const Part& part : parts) {
    const size_t done = responses_.lengths.size();
    const Responses of_part = generator_.Generate(
        *part.parameters, *part.engine, std::span(problems_).subspan(done / kGroup, part.prompts),
        kGroup, HashOf({seed_, 31, number}), Decoding::kSample, done);
    responses_.Append(of_part);
  }
  std::vector<float> rewards;
  for (size_t i = 0; i < cell_.prompts * kGroup; ++i) {
    rewards.push_back(problems_[i / kGroup].Reward(responses_.response(i)));
  }
  advantages_ = GroupAdvantages(rewards);
  const std::vector<float> engine_log_probs = SampledLogProbs();
  size_t recomputed = 0;
  for (const Part& part : parts) {
    const size_t count = part.prompts * kGroup;
    if (cell_.recomputed == Recomputed::kByBehavior) {
      Recompute(*part.parameters, recomputed, count);
    } else if (cell_.recomputed == Recomputed::kByProximal) {
      Recompute(parameters_, recomputed, count);
    }
    recomputed += count;
  }
  records_ = Record();
  records_.engine_log_probs = engine_log_probs;
  rewards_.push_back(Mean<float>(rewards));

  order_.resize(rewards.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  Random random(HashOf({seed_, 32, number}));
  for (size_t i = order_.size() - 1; i > 0; --i) {
    std::swap(order_[i], order_[static_cast<size_t>(random.Below(static_cast<int>(i) + 1))]);
  }
  const size_t last_sixth = cell_.rollouts - std::max<size_t>(1, cell_.rollouts / 6);
  if (number == last_sixth) entropy_ = entropy_tokens_ = 0.0;
  return records_;
}

std::vector<Trainer::Part> Trainer::Parts(uint64_t rollout) const {
  std::vector<Part> parts;
  for (size_t i = 0; i < cell_.prompts; ++i) {
    const std::vector<float>* parameters = &history_.front();
    if (cell_.mixed_ages) {
      Random random(HashOf({seed_, 33, rollout, i}));
      const auto ages = static_cast<int>(history_.size());
      parameters = &history_[static_cast<size_t>(random.Below(ages))];
    }
    const bool second = cell_.second_engine && i >= cell_.prompts / 2;
    const Engine* engine = second ? &*cell_.second_engine : &cell_.engine;
    if (parts.empty() || parts.back().parameters != parameters || parts.back().engine != engine) {
      parts.push_back({parameters, engine, 0});
    }
    ++parts.back().prompts;
  }
  return parts;
}

void Trainer::Recompute(std::span<const float> parameters, size_t first, size_t count) {
  const size_t row = task_.response_length * shape_.padded_vocabulary();
  std::vector<size_t> responses;
  for (const size_t end = first + count; first < end; first += responses.size()) {
    responses.resize(std::min(kForwardBatch, end - first));
    std::iota(responses.begin(), responses.end(), first);
    Forward(parameters, responses);
    std::copy_n(model_.log_probs(0, 0), responses.size() * row,
                responses_.log_probs.data() + first * row);
  }
}

void Trainer::Forward(std::span<const float> parameters, std::span<const size_t> responses) {
  std::vector<int> inputs;
  for (const size_t i : responses) {
    AppendInput(task_, problems_[i / kGroup].prompt, responses_.response(i), inputs);
  }
  model_.Forward(parameters, {responses.size(), 0, task_.context() - 1, task_.response_length},
                 inputs);
}

std::vector<float> Trainer::SampledLogProbs() const {
  std::vector<float> sampled(responses_.tokens.size());
  for (size_t r = 0; r < sampled.size(); ++r) {
    sampled[r] =
        responses_
            .log_probs[r * shape_.padded_vocabulary() + static_cast<size_t>(responses_.tokens[r])];
  }
  return sampled;
}

Records Trainer::Record() const {
  const size_t length = task_.response_length;
  const auto top_k = static_cast<size_t>(cell_.top_k);
  const size_t rows = responses_.tokens.size();
  Records records{.rollout = rewards_.size(),
                  .top_k = cell_.top_k,
                  .length = length,
                  .lengths = responses_.lengths,
                  .sampled_ids = {responses_.tokens.begin(), responses_.tokens.end()},
                  .sampled_log_probs = std::vector<float>(rows),
                  .engine_log_probs = {},
                  .ids = std::vector<int32_t>(rows * top_k, -1),
                  .log_probs = std::vector<float>(rows * top_k, -INFINITY)};
  const bool cuts = cell_.mass > 0.0 && cell_.mass < 1.0;
  std::vector<int32_t> ids(shape_.vocabulary);
  for (size_t r = 0; r < rows; ++r) {
    if (r % length >= records.lengths[r / length]) continue;
    const float* log_probs = responses_.log_probs.data() + r * shape_.padded_vocabulary();
    records.sampled_log_probs[r] = log_probs[records.sampled_ids[r]];
    std::iota(ids.begin(), ids.end(), 0);
    std::partial_sort(ids.begin(), ids.begin() + cell_.top_k, ids.end(), [&](int32_t a, int32_t b) {
      return log_probs[a] != log_probs[b] ? log_probs[a] > log_probs[b] : a < b;
    });
    for (size_t slot = 0; slot < top_k; ++slot) {
      records.ids[r * top_k + slot] = ids[slot];
      records.log_probs[r * top_k + slot] = log_probs[ids[slot]];
    }
    if (!cuts) continue;
    uint16_t rank = 0;  // which KernelDecisions finds in what is left
    const auto slots = [&](auto& values) { return std::span(values).subspan(r * top_k, top_k); };
    CutToMass(cell_.mass, top_k, slots(records.ids), slots(records.log_probs), {&rank, 1});
  }
  return records;
}

MiniBatch Trainer::Gather(size_t update) {
  const size_t size = order_.size() / cell_.updates;
  const auto first = order_.begin() + static_cast<std::ptrdiff_t>(update * size);
  MiniBatch batch{steps_, {first, first + static_cast<std::ptrdiff_t>(size)}, {}, {}, {}};
  // Those that have a gradient first.
  const auto others = std::stable_partition(batch.responses.begin(), batch.responses.end(),
                                            [&](size_t i) { return advantages_[i] != 0.0f; });
  if (cell_.arm.leaves_out_equal_groups) {
    batch.responses.erase(std::max(others, batch.responses.begin() + 1), batch.responses.end());
  }
  Forward(parameters_, batch.responses);
  const auto top_k = static_cast<size_t>(records_.top_k);
  for (size_t i = 0; i < batch.responses.size(); ++i) {
    const size_t response = batch.responses[i];
    for (size_t t = 0; t < records_.lengths[response]; ++t) {
      const size_t row = response * records_.length + t;
      const float* log_probs = model_.log_probs(i, t);
      batch.sampled_log_probs.push_back(log_probs[records_.sampled_ids[row]]);
      for (size_t slot = 0; slot < top_k; ++slot) {
        const int32_t id = records_.ids[row * top_k + slot];
        batch.log_probs.push_back(id < 0 ? -INFINITY : log_probs[id]);
      }
      batch.advantages.push_back(advantages_[response]);
    }
  }
  return batch;
}

void Trainer::Count(const MiniBatch& batch, const Decided& decided) {
  counted_responses_ += static_cast<double>(batch.responses.size());
  counted_tokens_ += static_cast<double>(batch.sampled_log_probs.size());
  size_t at = 0;
  for (size_t i = 0; i < batch.responses.size(); ++i) {
    const size_t response = batch.responses[i];
    for (size_t t = 0; t < records_.lengths[response]; ++t, ++at) {
      const size_t row = response * records_.length + t;
      result_.accept_rate += decided.decisions[at] == Decision::kAccepted ? 1.0 : 0.0;
      result_.d += std::abs(batch.sampled_log_probs[at] - records_.sampled_log_probs[row]);
      result_.d_sis += std::abs(decided.log_modified_ratios[at]);
      if (batch.advantages[at] != 0.0f) {
        pushed_tokens_ += 1.0;
        result_.zeroed += decided.coefficients[at] == 0.0f ? 1.0 : 0.0;
      }
      const float* log_probs = model_.log_probs(i, t);
      const float* probabilities = model_.probabilities(i, t);
      for (size_t v = 0; v < shape_.vocabulary; ++v) {
        entropy_ -= static_cast<double>(probabilities[v]) * log_probs[v];
      }
      entropy_tokens_ += 1.0;
    }
  }
}

void Trainer::Update(const MiniBatch& batch, std::span<const float> coefficients) {
  const size_t columns = shape_.padded_vocabulary();
  const size_t length = task_.response_length;
  const auto tokens = static_cast<float>(batch.sampled_log_probs.size());
  std::vector<float> d_logits;
  size_t pushed = 0;
  size_t at = 0;
  for (; pushed < batch.responses.size() && advantages_[batch.responses[pushed]] != 0.0f;
       ++pushed) {
    const size_t response = batch.responses[pushed];
    d_logits.resize((pushed + 1) * length * columns);
    for (size_t t = 0; t < records_.lengths[response]; ++t, ++at) {
      const float weight = coefficients[at] * batch.advantages[at] / tokens;
      const float* probabilities = model_.probabilities(pushed, t);
      float* d = d_logits.data() + (pushed * length + t) * columns;
      for (size_t v = 0; v < columns; ++v) d[v] = weight * probabilities[v];
      d[records_.sampled_ids[response * length + t]] -= weight;
    }
  }
  const double norm =
      learner_.Step(pushed, d_logits, cell_.learning_rate, cell_.gradient_clip, parameters_);
  if (std::isfinite(norm)) result_.largest_gradient = std::max(result_.largest_gradient, norm);
  ++steps_;
}

RunResult Trainer::Finish() {
  const std::span<const double> rewards = rewards_;
  result_.mean_reward = Mean(rewards);
  const size_t parts = result_.curve.size();
  for (size_t i = 0; i < parts; ++i) {
    const size_t first = i * rewards.size() / parts;
    const size_t end = std::max(first + 1, (i + 1) * rewards.size() / parts);
    result_.curve[i] = Mean(rewards.subspan(first, end - first));
  }
  result_.accept_rate /= std::max(1.0, counted_tokens_);
  result_.d /= std::max(1.0, counted_responses_);
  result_.d_sis /= std::max(1.0, counted_responses_);
  result_.zeroed /= std::max(1.0, pushed_tokens_);
  result_.entropy = entropy_ / std::max(1.0, entropy_tokens_);
  result_.final_reward =
      generator_.Accuracy(parameters_, cell_.held_out, kSampledSeed, Decoding::kSample);
  result_.final_greedy =
      generator_.Accuracy(parameters_, cell_.held_out, kGreedySeed, Decoding::kGreedy);
  return result_;
}

RunResult Train(const StartSettings& start, const CellSettings& cell, uint64_t seed,
                std::vector<float>& parameters) {
  Trainer trainer(start, cell, seed, parameters);
  KernelDecisions decisions(cell.arm, seed, cell.encoding);
  for (size_t r = 0; r < cell.rollouts; ++r) {
    decisions.Record(trainer.Generate());
    for (size_t u = 0; u < cell.updates; ++u) {
      const MiniBatch batch = trainer.Gather(u);
      const Decided decided = decisions.Decide(batch);
      trainer.Count(batch, decided);
      trainer.Update(batch, decided.coefficients);
    }
  }
  parameters = trainer.parameters();
  return trainer.Finish();
}

}  // namespace sis::study
