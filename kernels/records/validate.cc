#include "kernels/records/validate.h"

#include <bit>
#include <cmath>
#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/records/slot_checker.h"

namespace sis {
namespace {

// Checks one position; the rank of the sampled token, or the error. `count` gets the slots that are
// used before their mass reaches `mass`.
absl::StatusOr<uint16_t> ValidateRecord(int32_t sampled_id, float sampled_log_prob,
                                        std::span<const int32_t> ids,
                                        std::span<const float> log_probs, int32_t vocabulary_size,
                                        uint32_t position, double mass, uint16_t& count) {
  if (sampled_id < 0 || sampled_id >= vocabulary_size) {
    return InvalidPosition("sampled_ids", position,
                           absl::StrCat(sampled_id, " is not in [0, ", vocabulary_size, ")"));
  }
  if (!(std::isfinite(sampled_log_prob) && sampled_log_prob <= kRoundingSlack)) {
    return InvalidPosition(
        "sampled_log_probs", position,
        absl::StrCat(sampled_log_prob, " is not a finite log-prob of at most 1/64"));
  }
  uint16_t rank = kRankOutside;
  count = 0;
  SlotChecker checker("top_k_", ids, log_probs, vocabulary_size, position);
  for (size_t slot = 0; slot < ids.size() && checker.mass() < mass; ++slot) {
    const absl::StatusOr<bool> used = checker.Check(slot);
    if (!used.ok()) return used.status();
    if (!*used) continue;
    ++count;
    const int32_t id = ids[slot];
    const float log_prob = log_probs[slot];
    if (slot > 0 && log_prob == log_probs[slot - 1] && id < ids[slot - 1]) {
      return InvalidSlot("top_k_ids", position, slot,
                         absl::StrCat("id ", id, " follows id ", ids[slot - 1],
                                      " of equal log-prob: ties go by id"));
    }
    if (id == sampled_id) {
      if (std::bit_cast<uint32_t>(log_prob) != std::bit_cast<uint32_t>(sampled_log_prob)) {
        return InvalidPosition("sampled_log_probs", position,
                               absl::StrCat(sampled_log_prob, " differs from slot ", slot,
                                            " of the same token, ", log_prob));
      }
      rank = static_cast<uint16_t>(slot);
    }
  }
  if (absl::Status status = checker.CheckMass(); !status.ok()) return status;
  return rank;
}

}  // namespace

absl::Status ValidateRecords(const RecordView& records, int slots, int32_t vocabulary_size,
                             uint32_t first_position, std::span<uint16_t> ranks,
                             const MassCut& cut) {
  if (RecordsAreQuicklySeenValid(records, slots, vocabulary_size, ranks, cut)) {
    return absl::OkStatus();
  }
  // Which one isn't, if any.
  const size_t k = slots;
  const double mass = cut.counts.empty() ? std::numeric_limits<double>::infinity() : cut.mass;
  for (size_t i = 0; i < records.sampled_ids.size(); ++i) {
    uint16_t count = 0;
    const absl::StatusOr<uint16_t> rank =
        ValidateRecord(records.sampled_ids[i], records.sampled_log_probs[i],
                       records.ids.subspan(i * k, k), records.log_probs.subspan(i * k, k),
                       vocabulary_size, static_cast<uint32_t>(first_position + i), mass, count);
    if (!rank.ok()) return rank.status();
    ranks[i] = *rank;
    if (!cut.counts.empty()) cut.counts[i] = count;
  }
  return absl::OkStatus();
}

}  // namespace sis
