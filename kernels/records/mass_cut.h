// Sets as long as their mass (docs/numerics.md, section 4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sis {

// Of how many of the first slots the mass reaches the target, in (0, 1); all if it never does. Of
// invalid log-probs it is some number, at least 1 if there are slots.
size_t SlotsToMass(double mass, std::span<const float> log_probs);

// Cuts records where their mass reaches the target, in (0, 1): slots beyond become unused,
// and a rank [T] beyond is kRankOutside. ids and log_probs are [T, slots].
void CutToMass(double mass, size_t slots, std::span<int32_t> ids, std::span<float> log_probs,
               std::span<uint16_t> ranks);

}  // namespace sis
