#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/bench/encodings/policy_pairs.h"

namespace sis {
namespace {

constexpr int kVocabularySize = 32768;

double LogSumExp(const std::vector<float>& logits) {
  const float top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  return top + std::log(sum);
}

}  // namespace

PolicyPairs LlmLikePairs(std::string name, int slots, double drift, int positions) {
  PolicyPairs pairs{.name = std::move(name), .slots = slots, .positions = {}};
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::exponential_distribution<float> lead(0.25f);
  std::bernoulli_distribution leads(0.8);
  std::vector<float> log_rank(kVocabularySize);
  for (int v = 0; v < kVocabularySize; ++v) log_rank[v] = std::log1p(static_cast<float>(v));
  std::vector<float> behavior(kVocabularySize);
  std::vector<float> current(kVocabularySize);
  std::vector<int> order(kVocabularySize);
  for (int i = 0; i < positions; ++i) {
    const float exponent = 2.2f * std::exp(0.35f * normal(random));
    for (int v = 0; v < kVocabularySize; ++v) {
      behavior[v] = 0.4f * normal(random) - exponent * log_rank[v];
      if (v == 0 && leads(random)) behavior[v] += lead(random);
      current[v] = behavior[v] + static_cast<float>(drift) * normal(random);
    }
    const double behavior_sum = LogSumExp(behavior);
    const double current_sum = LogSumExp(current);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + slots, order.end(),
                      [&](int a, int b) { return behavior[a] > behavior[b]; });
    PolicyPair& pair = pairs.positions.emplace_back();
    for (int slot = 0; slot < slots; ++slot) {
      const int v = order[slot];
      pair.behavior.push_back(static_cast<float>(behavior[v] - behavior_sum));
      pair.current.push_back(static_cast<float>(current[v] - current_sum));
    }
  }
  return pairs;
}

}  // namespace sis
