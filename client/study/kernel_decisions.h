// Decisions by the service's kernels, in this process: the bits that a server would give.
#pragma once

#include <cstdint>
#include <vector>

#include "client/study/arm.h"
#include "client/study/decisions.h"
#include "kernels/decide/simd_backend.h"
#include "kernels/records/encoding.h"

namespace sis::study {

class KernelDecisions final : public DecisionMaker {
 public:
  KernelDecisions(const Arm& arm, uint64_t run_seed, LogProbEncoding encoding)
      : arm_(arm), run_seed_(run_seed), encoding_(encoding) {}

  void Record(Records records) override;
  Decided Decide(const MiniBatch& batch) override;

 private:
  // What the arm makes of log w~ and its state, from what the backend wrote.
  void Correct(const MiniBatch& batch, std::span<const Stretch> stretches, Decided& decided,
               std::vector<TokenState>& states);
  void LimitDualClip(const MiniBatch& batch, Decided& decided) const;

  const Arm arm_;
  const uint64_t run_seed_;
  const LogProbEncoding encoding_;
  const SimdBackend backend_;
  // As they come back from a cache.
  Records records_;
  std::vector<uint8_t> ranks_;  // [N, length], of the sampled tokens
  // Of the batch at hand.
  std::vector<float> log_ratios_, log_envelopes_, covered_masses_;
};

}  // namespace sis::study
