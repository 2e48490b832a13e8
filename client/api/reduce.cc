#include "client/api/reduce.h"

#include <cstddef>

#include "kernels/decide/decide.h"

namespace sis {

ReducedSlots Reduce(std::span<const float> behavior_log_probs,
                    std::span<const float> current_log_probs, int slots, int top_k) {
  const size_t row_length = slots;
  const size_t positions = behavior_log_probs.size() / row_length;
  ReducedSlots reduced;
  reduced.log_envelopes.reserve(positions);
  reduced.covered_masses.reserve(positions);
  for (size_t row = 0; row < positions; ++row) {
    EnvelopeAccumulator accumulator;
    for (int slot = 0; slot < top_k; ++slot) {
      const size_t i = row * row_length + slot;
      accumulator.Add(behavior_log_probs[i], current_log_probs[i]);
    }
    const Envelope envelope = accumulator.Finish();
    reduced.log_envelopes.push_back(envelope.log_envelope);
    reduced.covered_masses.push_back(envelope.covered_mass);
  }
  return reduced;
}

}  // namespace sis
