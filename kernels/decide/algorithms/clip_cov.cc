#include "kernels/decide/algorithms/clip_cov.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "kernels/numerics/philox.h"
#include "kernels/numerics/sums.h"

namespace sis {
namespace {

// Returns the random word of `position`. Four positions share a counter. Domain 1 is acceptance.
uint32_t ChoiceWord(uint64_t sequence_key, uint32_t position, uint64_t draw) {
  constexpr uint32_t kClipCovDomain = 2;
  const PhiloxBlock block =
      Philox4x32({{position >> 2, static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32),
                   kClipCovDomain}},
                 static_cast<uint32_t>(sequence_key), static_cast<uint32_t>(sequence_key >> 32));
  return block.word[position & 3];
}

// Limits a log-prob as sums do, so that -inf has a covariance.
float LimitedLogProb(float log_prob) { return log_prob < -64.0f ? -64.0f : log_prob; }

struct Means {
  float log_prob = 0.0f;
  float advantage = 0.0f;
  int64_t positions = 0;
};

Means MeansOf(const AlgorithmInput& batch) {
  int64_t log_probs = 0;
  int64_t advantages = 0;
  Means means;
  for (size_t i = 0; i < batch.states.size(); ++i) {
    if (batch.states[i] == TokenState::kMasked) continue;
    log_probs += Fixed(batch.current_log_probs[i]);
    advantages += Fixed(batch.advantages[i]);
    ++means.positions;
  }
  if (means.positions == 0) return means;
  const auto count = static_cast<double>(means.positions);
  means.log_prob = static_cast<float>(FromFixed(log_probs) / count);
  means.advantage = static_cast<float>(FromFixed(advantages) / count);
  return means;
}

struct Candidate {
  uint32_t word;
  uint64_t sequence_key;
  uint32_t position;
  size_t index;

  bool operator<(const Candidate& other) const {
    return std::tie(word, sequence_key, position) <
           std::tie(other.word, other.sequence_key, other.position);
  }
};

// Returns the positions to drop.
std::vector<Candidate> ChooseDropped(const ClipCov& parameters, const AlgorithmInput& batch) {
  const Means means = MeansOf(batch);
  std::vector<Candidate> candidates;
  size_t i = 0;
  for (const SequenceRange& part : batch.parts) {
    for (uint32_t position = part.first_position; position < part.first_position + part.count;
         ++position, ++i) {
      if (batch.states[i] == TokenState::kMasked) continue;
      // On-policy tokens keep weight 1 under two policies, so they are no candidates.
      if (batch.states[i] == TokenState::kOnPolicy && batch.log_corrections.empty()) continue;
      const float covariance = (LimitedLogProb(batch.current_log_probs[i]) - means.log_prob) *
                               (batch.advantages[i] - means.advantage);
      if (!(covariance > parameters.lower && covariance < parameters.upper)) continue;
      candidates.push_back(
          {ChoiceWord(part.sequence_key, position, batch.draw), part.sequence_key, position, i});
    }
  }
  const double wanted = std::max(1.0, std::floor(static_cast<double>(parameters.fraction) *
                                                 static_cast<double>(means.positions)));
  const auto dropped = std::min(candidates.size(), static_cast<size_t>(wanted));
  const auto end = candidates.begin() + static_cast<ptrdiff_t>(dropped);
  std::nth_element(candidates.begin(), end, candidates.end());
  candidates.erase(end, candidates.end());
  return candidates;
}

}  // namespace

void ClipCov::Apply(const AlgorithmInput& batch, const AlgorithmOutput& output) const {
  for (size_t i = 0; i < batch.states.size(); ++i) {
    const bool masked = batch.states[i] == TokenState::kMasked;
    const float weight =
        masked ? 0.0f : RatioProduct(batch.Correction(i), Exp32(batch.log_ratios[i]));
    output.Store(i, {weight, weight});
  }
  for (const Candidate& candidate : ChooseDropped(*this, batch)) {
    output.Store(candidate.index, {0.0f, 0.0f});
  }
}

}  // namespace sis
