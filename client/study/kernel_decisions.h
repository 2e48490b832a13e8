// Decisions by the service's kernels, in this process: the bits that a server would give.
#pragma once

#include <cstdint>
#include <vector>

#include "client/study/arm.h"
#include "client/study/decisions.h"
#include "kernels/decide/simd_backend.h"
#include "kernels/records/encoding.h"

namespace sis::study {

class KernelDecisions {
 public:
  KernelDecisions(const Arm& arm, uint64_t run_seed, LogProbEncoding encoding)
      : arm_(arm), run_seed_(run_seed), encoding_(encoding) {}

  void Record(Records records);
  // About what was recorded last.
  Decided Decide(const MiniBatch& batch) const;

 private:
  const Arm arm_;
  const uint64_t run_seed_;
  const LogProbEncoding encoding_;
  const SimdBackend backend_;
  // As they come back from a cache.
  Records records_;
  std::vector<uint16_t> ranks_;  // [N, length], of the sampled tokens
};

}  // namespace sis::study
