// What the current policy's log-probs at the recorded slots come down to, where they are: 12 bytes
// per position to send, whatever K is. The same bits as the server's own reduction of gathered
// values.
#pragma once

#include <span>
#include <vector>

namespace sis {

struct ReducedSlots {
  std::vector<float> log_envelopes;   // [N], nats; -inf where no slot is used
  std::vector<float> covered_masses;  // [N]
};

// Both arrays are [N, slots], in the order of the records; behavior_log_probs as FetchTopK returned
// them, -inf in unused slots. Only the first top_k slots count; it must be in [1, slots]. Current
// log-probs at used slots must not be NaN.
ReducedSlots Reduce(std::span<const float> behavior_log_probs,
                    std::span<const float> current_log_probs, int slots, int top_k);

}  // namespace sis
