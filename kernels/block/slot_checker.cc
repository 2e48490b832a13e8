#include "kernels/block/slot_checker.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"

namespace sis {
namespace {

bool IsFiniteLogProb(float x) { return std::isfinite(x) && x <= kRoundingSlack; }

std::string NotFinite(float x) {
  return absl::StrCat(x, " is not a finite log-prob of at most 1/64");
}

bool IsId(int32_t id, int32_t vocabulary_size) { return id >= 0 && id < vocabulary_size; }

std::string NotBelow(int32_t id, int32_t vocabulary_size) {
  return absl::StrCat(id, " is not in [0, ", vocabulary_size, ")");
}

}  // namespace

absl::Status InvalidPosition(absl::string_view field, uint32_t position, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, " at position ", position, ": ", what));
}

absl::Status InvalidSlot(absl::string_view field, uint32_t position, size_t slot,
                         absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " at position ", position, ", slot ", slot, ": ", what));
}

absl::Status CheckSampled(int32_t id, float log_prob, int32_t vocabulary_size, uint32_t position) {
  if (!IsId(id, vocabulary_size)) {
    return InvalidPosition("sampled_ids", position, NotBelow(id, vocabulary_size));
  }
  if (!IsFiniteLogProb(log_prob)) {
    return InvalidPosition("sampled_log_probs", position, NotFinite(log_prob));
  }
  return absl::OkStatus();
}

absl::Status SlotChecker::Check(size_t slot) {
  const int32_t id = ids_[slot];
  const float log_prob = log_probs_[slot];
  if (!IsId(id, vocabulary_size_)) return Bad("ids", slot, NotBelow(id, vocabulary_size_));
  if (!IsFiniteLogProb(log_prob)) return Bad("log_probs", slot, NotFinite(log_prob));
  if (slot > 0 && log_prob > log_probs_[slot - 1]) {
    return Bad("log_probs", slot,
               absl::StrCat(log_prob, " is above the slot before it, ", log_probs_[slot - 1],
                            ": not sorted"));
  }
  if (ties_by_id_ && slot > 0 && log_prob == log_probs_[slot - 1] && id <= ids_[slot - 1]) {
    return Bad("ids", slot,
               absl::StrCat("id ", id, " follows id ", ids_[slot - 1],
                            " of equal log-prob: ties go by id"));
  }
  mass_ = mass_ + Exp32(log_prob);
  return absl::OkStatus();
}

absl::Status SlotChecker::CheckDistinct(size_t slot) {
  const uint32_t hash = (static_cast<uint32_t>(ids_[slot]) * 0x9E3779B1u) >> 22;
  uint64_t& word = filter_[hash / 64];
  const uint64_t bit = uint64_t{1} << (hash % 64);
  const bool maybe = (word & bit) != 0;
  word |= bit;
  const auto earlier = ids_.first(slot);
  if (!maybe || std::ranges::find(earlier, ids_[slot]) == earlier.end()) return absl::OkStatus();
  return Bad("ids", slot, absl::StrCat("id ", ids_[slot], " stands twice"));
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
