// The checks of a position and its slots (docs/numerics.md, section 2), and their messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sis {

// Return InvalidArgument: `what` is wrong with `field` at a position, or in one of its slots.
absl::Status InvalidPosition(absl::string_view field, uint32_t position, absl::string_view what);
absl::Status InvalidSlot(absl::string_view field, uint32_t position, size_t slot,
                         absl::string_view what);

// Checks a position's sampled token.
absl::Status CheckSampled(int32_t id, float log_prob, int32_t vocabulary_size, uint32_t position);

// Checks the used slots of one position. `field` is the prefix of field names in messages.
class SlotChecker {
 public:
  SlotChecker(absl::string_view field, std::span<const int32_t> ids,
              std::span<const float> log_probs, int32_t vocabulary_size, uint32_t position,
              bool ties_by_id)
      : field_(field),
        ids_(ids),
        log_probs_(log_probs),
        vocabulary_size_(vocabulary_size),
        position_(position),
        ties_by_id_(ties_by_id) {}

  // Both must be called for all slots in order.
  absl::Status Check(size_t slot);
  absl::Status CheckDistinct(size_t slot);
  // Returns the mass of the checked slots.
  float mass() const { return mass_; }
  // Must be called after the last slot.
  absl::Status CheckMass() const;

 private:
  absl::Status Bad(absl::string_view array, size_t slot, absl::string_view what) const;

  const absl::string_view field_;
  const std::span<const int32_t> ids_;
  const std::span<const float> log_probs_;
  const int32_t vocabulary_size_;
  const uint32_t position_;
  const bool ties_by_id_;
  // One bit per hash of an id, so that few pairs of ids must be compared.
  uint64_t filter_[16] = {};
  float mass_ = 0.0f;
};

}  // namespace sis
