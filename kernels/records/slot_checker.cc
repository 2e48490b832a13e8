#include "kernels/records/slot_checker.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"

namespace sis {

absl::Status InvalidPosition(absl::string_view field, uint32_t position, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, " at position ", position, ": ", what));
}

absl::Status InvalidSlot(absl::string_view field, uint32_t position, size_t slot,
                         absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " at position ", position, ", slot ", slot, ": ", what));
}

absl::StatusOr<bool> SlotChecker::Check(size_t slot) {
  const int32_t id = ids_[slot];
  const float log_prob = log_probs_[slot];
  if (id == -1) {
    if (log_prob != kMinusInfinity) {
      return Bad("log_probs", slot,
                 absl::StrCat(log_prob, " in an unused slot (id -1), which must hold -inf"));
    }
    ended_ = true;
    return false;
  }
  if (ended_) return Bad("ids", slot, absl::StrCat("id ", id, " after an unused slot"));
  if (id < 0 || id >= vocabulary_size_) {
    return Bad("ids", slot, absl::StrCat(id, " is neither -1 nor in [0, ", vocabulary_size_, ")"));
  }
  if (!(std::isfinite(log_prob) && log_prob <= kRoundingSlack)) {
    return Bad("log_probs", slot,
               absl::StrCat(log_prob, " is not a finite log-prob of at most 1/64"));
  }
  if (duplicates_.Seen(id, ids_.first(slot))) {
    return Bad("ids", slot, absl::StrCat("id ", id, " stands twice"));
  }
  if (slot > 0 && log_prob > log_probs_[slot - 1]) {
    return Bad("log_probs", slot,
               absl::StrCat(log_prob, " is above the slot before it, ", log_probs_[slot - 1],
                            ": not sorted"));
  }
  mass_ = mass_ + Exp32(log_prob);
  return true;
}

absl::Status SlotChecker::CheckMass() const {
  if (mass_ <= 1.0f + kRoundingSlack) return absl::OkStatus();
  return InvalidPosition(absl::StrCat(field_, "log_probs"), position_,
                         absl::StrCat("probabilities sum to ", mass_, ", above 1 + 1/64"));
}

absl::Status SlotChecker::Bad(absl::string_view array, size_t slot, absl::string_view what) const {
  return InvalidSlot(absl::StrCat(field_, array), position_, slot, what);
}

}  // namespace sis
