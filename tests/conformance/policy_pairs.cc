#include "tests/conformance/policy_pairs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sis {
namespace {

std::vector<float> LogSoftmax(const std::vector<double>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  std::vector<float> log_probs;
  for (const double logit : logits) {
    log_probs.push_back(static_cast<float>(logit - largest - std::log(sum)));
  }
  return log_probs;
}

int Below(std::mt19937_64& random, int bound) {
  return std::uniform_int_distribution<int>(0, bound - 1)(random);
}

}  // namespace

PolicyPair RandomPolicyPair(std::mt19937_64& random, int tokens) {
  constexpr double kInverseTemperatures[] = {0.1, 1, 3, 10};
  constexpr double kDrifts[] = {0, 0.01, 0.1, 1, 10};
  const double inverse_temperature = kInverseTemperatures[Below(random, 4)];
  const double drift = kDrifts[Below(random, 5)];
  const bool tied = Below(random, 4) == 0;
  const bool impossible = Below(random, 8) == 0;

  std::normal_distribution<double> normal;
  std::vector<double> behavior_logits, current_logits;
  for (int token = 0; token < tokens; ++token) {
    behavior_logits.push_back(inverse_temperature * normal(random));
    current_logits.push_back(behavior_logits.back() + drift * normal(random));
  }
  std::vector<float> behavior = LogSoftmax(behavior_logits);
  std::vector<float> current = LogSoftmax(current_logits);
  for (int token = 0; token < tokens; ++token) {
    if (tied) behavior[token] = std::floor(behavior[token] * 4) / 4;
    if (impossible && Below(random, 3) == 0) current[token] = kMinusInfinity;
  }

  std::vector<int32_t> order(tokens);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&behavior](int32_t left, int32_t right) {
    return behavior[left] != behavior[right] ? behavior[left] > behavior[right] : left < right;
  });
  PolicyPair pair;
  for (const int32_t id : order) {
    pair.ids.push_back(id);
    pair.behavior.push_back(behavior[id]);
    pair.current.push_back(current[id]);
  }
  return pair;
}

void AppendPosition(const PolicyPair& pair, size_t sampled, Positions& positions) {
  const size_t slots = positions.slots;
  for (size_t slot = 0; slot < slots; ++slot) {
    const bool used = slot < pair.size();
    positions.ids.push_back(used ? pair.ids[slot] : -1);
    positions.behavior_log_probs.push_back(used ? pair.behavior[slot] : kMinusInfinity);
    positions.current_log_probs.push_back(used ? pair.current[slot] : std::nanf(""));
  }
  positions.sampled_ids.push_back(pair.ids[sampled]);
  positions.behavior_sampled_log_probs.push_back(pair.behavior[sampled]);
  positions.current_sampled_log_probs.push_back(pair.current[sampled]);
}

Positions RandomPositions(std::mt19937_64& random, int slots, size_t n) {
  Positions positions;
  positions.slots = slots;
  for (size_t i = 0; i < n; ++i) {
    const PolicyPair pair = RandomPolicyPair(random, 1 + Below(random, kMaxPairTokens));
    double u = std::uniform_real_distribution<double>()(random);
    size_t sampled = 0;
    while (sampled + 1 < pair.size() && (u -= std::exp(pair.behavior[sampled])) > 0) ++sampled;
    AppendPosition(pair, sampled, positions);
    if (Below(random, 50) == 0) {
      std::fill(positions.ids.end() - slots, positions.ids.end(), -1);
      std::fill(positions.behavior_log_probs.end() - slots, positions.behavior_log_probs.end(),
                kMinusInfinity);
    }
  }
  return positions;
}

Positions Reduce(const Positions& gathered, int top_k, Packing packing) {
  Positions reduced = gathered;
  reduced.current_log_probs.clear();
  const Packed packed(gathered, 0, packing);
  for (size_t i = 0; i < gathered.size(); ++i) {
    EnvelopeAccumulator accumulator;
    const auto behavior = packed.LogProbs(i, 1);
    for (size_t slot = 0; slot < std::min<size_t>(top_k, behavior.size()); ++slot) {
      accumulator.Add(behavior[slot], packed.Current(i, 1).log_probs[slot]);
    }
    // Unflushed: the backend has to do it.
    reduced.log_envelopes.push_back(accumulator.max_log_ratio);
    reduced.covered_masses.push_back(accumulator.covered_mass);
  }
  return reduced;
}

}  // namespace sis
