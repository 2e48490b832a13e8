// How far two policies are apart at the positions of a stretch, as far as recorded sets show it.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/decide/backend.h"
#include "kernels/decide/decide.h"

namespace sis {

// Of every position of a stretch in the GATHERED form, over V_k; into divergences [n]. Divergence:
// TopKTotalVariation or TopKKlDivergence.
template <typename Divergence>
void ComputeTopKDivergences(const EvaluateParameters& parameters, const Stretch& stretch,
                            std::span<float> divergences) {
  const BehaviorView& behavior = stretch.behavior;
  const CurrentView& current = stretch.current;
  const LogProbReader behavior_log_probs = behavior.Reader(parameters.slots);
  const CurrentReader current_log_probs(current, parameters.slots);
  for (size_t i = 0; i < divergences.size(); ++i) {
    Divergence divergence;
    for (int slot = 0; slot < parameters.top_k; ++slot) {
      divergence.Add(behavior_log_probs.At(i, slot), current_log_probs.At(i, slot));
    }
    if (behavior.sampled_ranks[i] >= parameters.top_k) {
      divergence.Add(behavior.sampled_log_probs[i], current.sampled_log_probs[i]);
    }
    divergences[i] = divergence.Finish();
  }
}

}  // namespace sis
