#include "kernels/block/validate.h"

#include <bit>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/block/block.h"
#include "kernels/block/slot_checker.h"
#include "kernels/numerics/log_prob.h"

namespace sis {
namespace {

// Checks one position.
absl::Status ValidateRecord(int32_t sampled_id, float sampled_log_prob,
                            std::span<const int32_t> ids, std::span<const float> log_probs,
                            int32_t vocabulary_size, uint32_t position, double mass, uint8_t& count,
                            uint8_t& rank) {
  if (absl::Status status = CheckSampled(sampled_id, sampled_log_prob, vocabulary_size, position);
      !status.ok()) {
    return status;
  }
  count = 0;
  rank = kBlockRankOutside;
  SlotChecker checker("top_k_", ids, log_probs, vocabulary_size, position, /*ties_by_id=*/true);
  for (size_t slot = 0; slot < ids.size() && checker.mass() < mass; ++slot) {
    const int32_t id = ids[slot];
    const float log_prob = log_probs[slot];
    if (id == -1) {
      if (log_prob == kMinusInfinity) continue;
      return InvalidSlot(
          "top_k_log_probs", position, slot,
          absl::StrCat(log_prob, " in an unused slot (id -1), which must hold -inf"));
    }
    if (slot > count) {
      return InvalidSlot("top_k_ids", position, slot,
                         absl::StrCat("id ", id, " after an unused slot"));
    }
    if (absl::Status status = checker.Check(slot); !status.ok()) return status;
    ++count;
    if (id != sampled_id) continue;
    rank = static_cast<uint8_t>(slot);
    if (std::bit_cast<uint32_t>(log_prob) != std::bit_cast<uint32_t>(sampled_log_prob)) {
      return InvalidPosition("sampled_log_probs", position,
                             absl::StrCat(sampled_log_prob, " differs from slot ", slot,
                                          " of the same token, ", log_prob));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateRecordsOneByOne(const RecordView& records, int slots, int32_t vocabulary_size,
                                     uint32_t first_position, double mass,
                                     std::span<uint8_t> counts, std::span<uint8_t> ranks) {
  const auto k = static_cast<size_t>(slots);
  const double end = mass > 0 && mass < 1 ? mass : std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < records.sampled_ids.size(); ++i) {
    absl::Status status = ValidateRecord(
        records.sampled_ids[i], records.sampled_log_probs[i], records.ids.subspan(i * k, k),
        records.log_probs.subspan(i * k, k), vocabulary_size,
        static_cast<uint32_t>(first_position + i), end, counts[i], ranks[i]);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ValidateRecords(const RecordView& records, int slots, int32_t vocabulary_size,
                             uint32_t first_position, double mass, std::span<uint8_t> counts,
                             std::span<uint8_t> ranks) {
  if (RecordsAreQuicklySeenValid(records, slots, vocabulary_size, mass, counts, ranks)) {
    return absl::OkStatus();
  }
  return ValidateRecordsOneByOne(records, slots, vocabulary_size, first_position, mass, counts,
                                 ranks);
}

}  // namespace sis
