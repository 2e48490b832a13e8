#include "kernels/decide/algorithms/gspo.h"

#include <unordered_map>

#include "kernels/decide/algorithms/ratio_clip.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/sums.h"

namespace sis {

LogRatioSum SumLogRatios(std::span<const TokenState> states, std::span<const float> log_ratios) {
  LogRatioSum sum;
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] == TokenState::kMasked) continue;
    sum += {Fixed(log_ratios[i]), 1};
  }
  return sum;
}

float SequenceRatio(const LogRatioSum& sum) {
  if (sum.positions == 0) return 1.0f;
  const double mean = FromFixed(sum.log_ratio) / static_cast<double>(sum.positions);
  return Exp32(Flush(static_cast<float>(mean)));
}

void Gspo::Apply(const AlgorithmInput& batch, const AlgorithmOutput& output) const {
  std::unordered_map<uint64_t, LogRatioSum> sequences;
  size_t offset = 0;
  for (size_t i = 0; i < batch.parts.size(); ++i) {
    const SequenceRange& part = batch.parts[i];
    const LogRatioSum sum = SumLogRatios(batch.states.subspan(offset, part.count),
                                         batch.log_ratios.subspan(offset, part.count));
    sequences[part.sequence_key] += sum;
    if (!output.log_ratio_sums.empty()) output.log_ratio_sums[i] = sum;
    offset += part.count;
  }

  const RatioClip clip{epsilon_low, epsilon_high};
  offset = 0;
  for (const SequenceRange& part : batch.parts) {
    const float ratio =
        SequenceRatio(part.whole_sequence ? *part.whole_sequence : sequences[part.sequence_key]);
    const size_t end = offset + part.count;
    for (; offset < end; ++offset) {
      const bool masked = batch.states[offset] == TokenState::kMasked;
      output.Store(offset,
                   masked ? Weights{0.0f, 0.0f}
                          : RatioProduct(batch.Correction(offset),
                                         clip.Weigh(ratio, AtOrZero(batch.advantages, offset))));
    }
  }
}

}  // namespace sis
