#include "kernels/decide/validate.h"

#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/decide/simd_validate.h"
#include "kernels/records/duplicate_finder.h"

namespace sis {
namespace {

absl::Status Invalid(absl::string_view field, uint32_t position, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, " at position ", position, ": ", what));
}

absl::Status InvalidSlot(absl::string_view field, uint32_t position, size_t slot,
                         absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " at position ", position, ", slot ", slot, ": ", what));
}

// What is checked of the slots of any set, whosever it is. `field` is what the names of ids and
// log-probs begin with.
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
  absl::StatusOr<bool> Check(size_t slot) {
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
      return Bad("ids", slot,
                 absl::StrCat(id, " is neither -1 nor in [0, ", vocabulary_size_, ")"));
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

  absl::Status CheckMass() const {
    if (mass_ <= 1.0f + kRoundingSlack) return absl::OkStatus();
    return Invalid(absl::StrCat(field_, "log_probs"), position_,
                   absl::StrCat("probabilities sum to ", mass_, ", above 1 + 1/64"));
  }

 private:
  absl::Status Bad(absl::string_view array, size_t slot, absl::string_view what) const {
    return InvalidSlot(absl::StrCat(field_, array), position_, slot, what);
  }

  const absl::string_view field_;
  const std::span<const int32_t> ids_;
  const std::span<const float> log_probs_;
  const int32_t vocabulary_size_;
  const uint32_t position_;
  DuplicateFinder duplicates_;
  bool ended_ = false;
  float mass_ = 0.0f;
};

// Checks one position; the rank of the sampled token, or the error.
absl::StatusOr<uint8_t> ValidateRecord(int32_t sampled_id, float sampled_log_prob,
                                       std::span<const int32_t> ids,
                                       std::span<const float> log_probs, int32_t vocabulary_size,
                                       uint32_t position) {
  if (sampled_id < 0 || sampled_id >= vocabulary_size) {
    return Invalid("sampled_ids", position,
                   absl::StrCat(sampled_id, " is not in [0, ", vocabulary_size, ")"));
  }
  if (!(std::isfinite(sampled_log_prob) && sampled_log_prob <= kRoundingSlack)) {
    return Invalid("sampled_log_probs", position,
                   absl::StrCat(sampled_log_prob, " is not a finite log-prob of at most 1/64"));
  }
  uint8_t rank = kRankOutside;
  SlotChecker checker("top_k_", ids, log_probs, vocabulary_size, position);
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    const absl::StatusOr<bool> used = checker.Check(slot);
    if (!used.ok()) return used.status();
    if (!*used) continue;
    const int32_t id = ids[slot];
    const float log_prob = log_probs[slot];
    if (slot > 0 && log_prob == log_probs[slot - 1] && id < ids[slot - 1]) {
      return InvalidSlot("top_k_ids", position, slot,
                         absl::StrCat("id ", id, " follows id ", ids[slot - 1],
                                      " of equal log-prob: ties go by id"));
    }
    if (id == sampled_id) {
      if (std::bit_cast<uint32_t>(log_prob) != std::bit_cast<uint32_t>(sampled_log_prob)) {
        return Invalid("sampled_log_probs", position,
                       absl::StrCat(sampled_log_prob, " differs from slot ", slot,
                                    " of the same token, ", log_prob));
      }
      rank = static_cast<uint8_t>(slot);
    }
  }
  if (absl::Status status = checker.CheckMass(); !status.ok()) return status;
  return rank;
}

// Checks the current policy's own set at one position.
absl::Status ValidateTopKSet(std::span<const int32_t> ids, std::span<const float> log_probs,
                             int32_t vocabulary_size, uint32_t position) {
  if (ids[0] == -1 && log_probs[0] == kMinusInfinity) {
    return InvalidSlot("top_k_set.ids", position, 0, "-1: the set is empty");
  }
  SlotChecker checker("top_k_set.", ids, log_probs, vocabulary_size, position);
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    const absl::StatusOr<bool> used = checker.Check(slot);
    if (!used.ok()) return used.status();
  }
  return checker.CheckMass();
}

absl::Status ValidateGathered(const BehaviorView& behavior, const CurrentView& current,
                              size_t slots, uint32_t first_position) {
  const LogProbReader behavior_log_probs(behavior.log_probs, behavior.grouped_log_probs, slots);
  const LogProbReader current_log_probs(current.log_probs, current.grouped_log_probs, slots,
                                        current.float16_log_probs);
  for (size_t i = 0; i < current.sampled_log_probs.size(); ++i) {
    const auto position = static_cast<uint32_t>(first_position + i);
    float mass = 0.0f;
    for (size_t slot = 0; slot < slots; ++slot) {
      if (behavior_log_probs.At(i, slot) == kMinusInfinity) continue;
      const float log_prob = current_log_probs.At(i, slot);
      if (!IsLogProb(log_prob)) {
        return InvalidSlot("gathered.log_probs", position, slot,
                           absl::StrCat(log_prob, " is not a log-prob of at most 1/64"));
      }
      mass = mass + Exp32(log_prob);
    }
    if (!IsMass(mass)) {
      return Invalid("gathered.log_probs", position,
                     absl::StrCat("probabilities sum to ", mass, ", above 1 + 1/64"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateReduced(const CurrentView& current, uint32_t first_position) {
  for (size_t i = 0; i < current.sampled_log_probs.size(); ++i) {
    const auto position = static_cast<uint32_t>(first_position + i);
    const float log_envelope = current.log_envelopes[i];
    if (!(log_envelope < std::numeric_limits<float>::infinity())) {
      return Invalid("reduced.log_envelopes", position,
                     absl::StrCat(log_envelope, " is neither finite nor -inf"));
    }
    const float mass = current.covered_masses[i];
    if (!IsMass(mass)) {
      return Invalid("reduced.covered_masses", position,
                     absl::StrCat(mass, " is not in [0, 1 + 1/64]"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateRecords(const RecordView& records, int slots, int32_t vocabulary_size,
                             uint32_t first_position, std::span<uint8_t> ranks) {
  if (RecordsAreQuicklySeenValid(records, slots, vocabulary_size, ranks)) return absl::OkStatus();
  // Which one isn't, if any.
  const size_t k = slots;
  for (size_t i = 0; i < records.sampled_ids.size(); ++i) {
    const absl::StatusOr<uint8_t> rank =
        ValidateRecord(records.sampled_ids[i], records.sampled_log_probs[i],
                       records.ids.subspan(i * k, k), records.log_probs.subspan(i * k, k),
                       vocabulary_size, static_cast<uint32_t>(first_position + i));
    if (!rank.ok()) return rank.status();
    ranks[i] = *rank;
  }
  return absl::OkStatus();
}

absl::Status ValidateCurrent(const BehaviorView& behavior, const CurrentView& current, int slots,
                             uint32_t first_position) {
  const absl::string_view form = current.reduced() ? "reduced" : "gathered";
  absl::Status status = ValidateSampledLogProbs(absl::StrCat(form, ".sampled_log_probs"),
                                                current.sampled_log_probs, first_position);
  if (!status.ok()) return status;
  return current.reduced() ? ValidateReduced(current, first_position)
                           : ValidateGathered(behavior, current, slots, first_position);
}

absl::Status ValidateSampledLogProbs(absl::string_view field, std::span<const float> log_probs,
                                     uint32_t first_position) {
  for (size_t i = 0; i < log_probs.size(); ++i) {
    if (IsLogProb(log_probs[i])) continue;
    return Invalid(field, static_cast<uint32_t>(first_position + i),
                   absl::StrCat(log_probs[i], " is not a log-prob of at most 1/64"));
  }
  return absl::OkStatus();
}

absl::Status ValidateTopKSets(const TopKSets& sets, int32_t vocabulary_size,
                              uint32_t first_position) {
  const size_t slots = sets.slots;
  for (size_t i = 0; i < sets.ids.size() / slots; ++i) {
    absl::Status status = ValidateTopKSet(sets.ids.subspan(i * slots, slots),
                                          sets.log_probs.subspan(i * slots, slots), vocabulary_size,
                                          static_cast<uint32_t>(first_position + i));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace sis
