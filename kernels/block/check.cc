#include "kernels/block/check.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/block/fixed16.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/records/slot_checker.h"

namespace sis {
namespace {

bool IsFiniteLogProb(float x) { return std::isfinite(x) && x <= kRoundingSlack; }

// One position of a block.
class PositionChecker {
 public:
  PositionChecker(const BlockView& block, uint32_t index, size_t first_slot)
      : block_(block),
        index_(index),
        first_slot_(first_slot),
        count_(block.counts[index]),
        position_(block.header.first_position + index) {}

  absl::Status Check() {
    const int32_t sampled_id = BlockId(block_.sampled_ids, index_, block_.header.id_bytes);
    const float sampled = block_.sampled_log_probs[index_];
    if (!IsId(sampled_id)) return Position("sampled_ids", absl::StrCat(sampled_id, NotBelow()));
    if (!IsFiniteLogProb(sampled)) {
      return Position("sampled_log_probs",
                      absl::StrCat(sampled, " is not a finite log-prob of at most 1/64"));
    }
    if (block_.header.fixed() && multiplier() == 0) {
      return Position("multipliers", "0 is not in [1, 255]");
    }
    uint8_t rank = kBlockRankOutside;
    for (size_t slot = 0; slot < count_; ++slot) {
      if (absl::Status status = CheckSlot(slot); !status.ok()) return status;
      if (id(slot) != sampled_id) continue;
      rank = static_cast<uint8_t>(slot);
      if (!IsRounded(slot, sampled)) {
        return Slot("log_probs", slot,
                    absl::StrCat(log_prob(slot), " is not the sampled log-prob ", sampled,
                                 " as it is stored"));
      }
    }
    if (block_.ranks[index_] != rank) {
      return Position("ranks", absl::StrCat(block_.ranks[index_], ", must be ", rank));
    }
    if (!(mass_ <= 1.0f + kRoundingSlack)) {
      return Position("log_probs",
                      absl::StrCat("probabilities sum to ", mass_, ", above 1 + 1/64"));
    }
    return block_.header.fixed() ? CheckMultiplier() : absl::OkStatus();
  }

 private:
  absl::Status CheckSlot(size_t slot) {
    if (!IsId(id(slot))) return Slot("ids", slot, absl::StrCat(id(slot), NotBelow()));
    for (size_t before = 0; before < slot; ++before) {
      if (id(before) == id(slot)) {
        return Slot("ids", slot, absl::StrCat("id ", id(slot), " stands twice"));
      }
    }
    const float x = log_prob(slot);
    if (block_.header.fixed() && code(slot) > kLowestCode16) {
      return Slot("log_probs", slot, "code 65535 stands for nothing");
    }
    if (!IsFiniteLogProb(x)) {
      return Slot("log_probs", slot, absl::StrCat(x, " is not a finite log-prob of at most 1/64"));
    }
    if (slot > 0 && x > log_prob(slot - 1)) {
      return Slot("log_probs", slot,
                  absl::StrCat(x, " is above the slot before it, ", log_prob(slot - 1)));
    }
    if (!block_.header.fixed() && slot > 0 && x == log_prob(slot - 1) && id(slot) < id(slot - 1)) {
      return Slot("ids", slot,
                  absl::StrCat("id ", id(slot), " follows id ", id(slot - 1),
                               " of equal log-prob: ties go by id"));
    }
    mass_ = mass_ + Exp32(x);
    return absl::OkStatus();
  }

  absl::Status CheckMultiplier() const {
    const uint32_t m = multiplier();
    const uint32_t last = count_ > 0 ? code(count_ - 1) : 0;
    if (m == 1 || last * m > kLowestCode16 * (m - 1)) return absl::OkStatus();
    return Position("multipliers", absl::StrCat(m, " is not the least that reaches code ", last));
  }

  bool IsRounded(size_t slot, float sampled) const {
    if (!block_.header.fixed()) {
      return std::bit_cast<uint32_t>(log_prob(slot)) == std::bit_cast<uint32_t>(sampled);
    }
    if (sampled < kFloor16) return false;
    const uint32_t depth = Depth16(sampled), m = multiplier();
    return code(slot) == (depth + m - 1) / m;
  }

  bool IsId(int32_t id) const {
    return id >= 0 && static_cast<uint32_t>(id) < block_.header.vocabulary_size;
  }
  std::string NotBelow() const {
    return absl::StrCat(" is not in [0, ", block_.header.vocabulary_size, ")");
  }
  int32_t id(size_t slot) const {
    return BlockId(block_.ids, first_slot_ + slot, block_.header.id_bytes);
  }
  uint32_t multiplier() const { return block_.multipliers[index_]; }
  uint32_t code(size_t slot) const { return Read<uint16_t>(slot); }
  float log_prob(size_t slot) const {
    return block_.header.fixed() ? Fixed16(code(slot), multiplier()) : Read<float>(slot);
  }
  template <typename T>
  T Read(size_t slot) const {
    T value;
    std::memcpy(&value, block_.log_probs + (first_slot_ + slot) * sizeof(T), sizeof(T));
    return value;
  }
  absl::Status Position(absl::string_view field, absl::string_view what) const {
    return InvalidPosition(field, position_, what);
  }
  absl::Status Slot(absl::string_view field, size_t slot, absl::string_view what) const {
    return InvalidSlot(field, position_, slot, what);
  }

  const BlockView& block_;
  const uint32_t index_;
  const size_t first_slot_, count_;
  const uint32_t position_;
  float mass_ = 0;
};

}  // namespace

absl::StatusOr<BlockView> CheckBlock(std::span<const std::byte> bytes) {
  absl::StatusOr<BlockView> block = OpenBlock(bytes, /*checksums=*/true);
  if (!block.ok()) return block;
  size_t first_slot = 0;
  for (uint32_t i = 0; i < block->header.positions; ++i) {
    if (absl::Status status = PositionChecker(*block, i, first_slot).Check(); !status.ok()) {
      return status;
    }
    first_slot += block->counts[i];
  }
  return block;
}

}  // namespace sis
