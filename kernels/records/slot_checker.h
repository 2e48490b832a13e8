// The checks of a position's slots (docs/numerics.md, section 2), and their messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/records/duplicate_finder.h"

namespace sis {

// InvalidArgument: what is wrong with `field` at a position, or in a slot of it.
absl::Status InvalidPosition(absl::string_view field, uint32_t position, absl::string_view what);
absl::Status InvalidSlot(absl::string_view field, uint32_t position, size_t slot,
                         absl::string_view what);

// Checks the slots of one position. `field` is what the names of ids and log-probs begin with.
class SlotChecker {
 public:
  SlotChecker(absl::string_view field, std::span<const int32_t> ids,
              std::span<const float> log_probs, int32_t vocabulary_size, uint32_t position)
      : field_(field),
        ids_(ids),
        log_probs_(log_probs),
        vocabulary_size_(vocabulary_size),
        position_(position) {}

  // To be called for one slot after the other. Whether the slot is used.
  absl::StatusOr<bool> Check(size_t slot);
  // Of the slots that were checked.
  float mass() const { return mass_; }
  // After the last slot.
  absl::Status CheckMass() const;

 private:
  absl::Status Bad(absl::string_view array, size_t slot, absl::string_view what) const;

  const absl::string_view field_;
  const std::span<const int32_t> ids_;
  const std::span<const float> log_probs_;
  const int32_t vocabulary_size_;
  const uint32_t position_;
  DuplicateFinder duplicates_;
  bool ended_ = false;
  float mass_ = 0.0f;
};

}  // namespace sis
