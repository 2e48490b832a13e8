// Pairs of categorical policies, recorded as a worker would: top-K sets, sampled tokens, float32
// log-probs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace sis {

// One position: both policies over the whole vocabulary, and V_K of the behaviour policy.
struct PolicyPair {
  std::vector<float> behavior;        // [V] log q
  std::vector<float> current;         // [V] log p
  std::vector<int32_t> ids = {};      // [K]
  std::vector<float> log_probs = {};  // [K] log q
  std::vector<float> gathered = {};   // [K] log p
};

class RandomPolicies {
 public:
  RandomPolicies(uint32_t seed, int vocabulary_size, int top_k)
      : random_(seed), vocabulary_size_(vocabulary_size), top_k_(top_k) {}

  // The current policy's logits are the behaviour policy's plus normal noise of this size.
  PolicyPair Next(double drift) {
    std::normal_distribution<double> normal;
    const double sharpness = std::uniform_real_distribution<double>(0.2, 4)(random_);
    std::vector<double> logits(vocabulary_size_);
    std::vector<double> moved(vocabulary_size_);
    for (int v = 0; v < vocabulary_size_; ++v) {
      logits[v] = sharpness * normal(random_);
      moved[v] = logits[v] + drift * normal(random_);
    }
    PolicyPair pair{.behavior = LogSoftmax(logits), .current = LogSoftmax(moved)};
    std::vector<int32_t> order(vocabulary_size_);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(), [&](int32_t v) { return pair.behavior[v]; });
    for (int slot = 0; slot < top_k_; ++slot) {
      const bool used = slot < vocabulary_size_;
      const int32_t id = used ? order[slot] : -1;
      constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
      pair.ids.push_back(id);
      pair.log_probs.push_back(used ? pair.behavior[id] : kMinusInfinity);
      pair.gathered.push_back(used ? pair.current[id] : kMinusInfinity);
    }
    return pair;
  }

  int32_t Sample(const std::vector<float>& log_probs) {
    std::vector<double> weights;
    for (const float log_prob : log_probs) weights.push_back(std::exp(log_prob));
    return std::discrete_distribution<int32_t>(weights.begin(), weights.end())(random_);
  }

  std::mt19937& random() { return random_; }

 private:
  static std::vector<float> LogSoftmax(const std::vector<double>& logits) {
    const double top = *std::ranges::max_element(logits);
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit - top);
    std::vector<float> log_probs;
    for (const double logit : logits) {
      log_probs.push_back(static_cast<float>(logit - top - std::log(sum)));
    }
    return log_probs;
  }

  std::mt19937 random_;
  const int vocabulary_size_;
  const int top_k_;
};

}  // namespace sis
