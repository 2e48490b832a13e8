#include "kernels/block/check.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/block/fixed16.h"
#include "kernels/block/slot_checker.h"

namespace sis {
namespace {

// Returns true if a slot holds the sampled token's log-prob as a writer stores it.
bool HoldsSampled(float stored, float sampled, bool fixed, uint32_t multiplier) {
  if (!fixed) return std::bit_cast<uint32_t>(stored) == std::bit_cast<uint32_t>(sampled);
  return sampled >= kFloor16 && stored == Fixed16(Code16(Depth16(sampled), multiplier), multiplier);
}

// Checks position `i` of a block. `all` is the range of the whole block; `first_slot` is the index
// of the position's first slot.
absl::Status CheckPosition(const BlockView& block, const BlockRange& all, uint32_t i,
                           size_t first_slot) {
  const BlockHeader& header = block.header;
  const size_t count = block.counts[i];
  const uint32_t position = header.first_position + i;
  const auto vocabulary_size = static_cast<int32_t>(header.vocabulary_size);
  const int32_t sampled_id = BlockId(block.sampled_ids, i, header.id_bytes);
  const float sampled = block.sampled_log_probs[i];
  if (absl::Status status = CheckSampled(sampled_id, sampled, vocabulary_size, position);
      !status.ok()) {
    return status;
  }
  const uint32_t multiplier = header.fixed() ? block.multipliers[i] : 1;
  if (multiplier == 0) return InvalidPosition("multipliers", position, "0 is not in [1, 255]");

  std::array<int32_t, kMaxBlockSlots> ids;
  std::array<float, kMaxBlockSlots> log_probs;
  uint32_t last_code = 0;
  for (size_t slot = 0; slot < count; ++slot) {
    ids[slot] = BlockId(block.ids, first_slot + slot, header.id_bytes);
    log_probs[slot] = all.LogProbAt(i, first_slot + slot);
    if (!header.fixed()) continue;
    uint16_t code;
    std::memcpy(&code, block.log_probs + (first_slot + slot) * sizeof code, sizeof code);
    last_code = code;
    if (last_code > kLowestCode16) {
      return InvalidSlot("log_probs", position, slot, "code 65535 stands for nothing");
    }
  }
  uint8_t rank = kBlockRankOutside;
  SlotChecker checker("", std::span(ids).first(count), std::span(log_probs).first(count),
                      vocabulary_size, position, /*ties_by_id=*/!header.fixed());
  for (size_t slot = 0; slot < count; ++slot) {
    if (absl::Status status = checker.CheckDistinct(slot); !status.ok()) return status;
    if (absl::Status status = checker.Check(slot); !status.ok()) return status;
    if (ids[slot] != sampled_id) continue;
    rank = static_cast<uint8_t>(slot);
    if (!HoldsSampled(log_probs[slot], sampled, header.fixed(), multiplier)) {
      return InvalidSlot("log_probs", position, slot,
                         absl::StrCat(log_probs[slot], " is not the sampled log-prob ", sampled,
                                      " as it is stored"));
    }
  }
  if (block.ranks[i] != rank) {
    return InvalidPosition("ranks", position, absl::StrCat(block.ranks[i], ", must be ", rank));
  }
  if (absl::Status status = checker.CheckMass(); !status.ok()) return status;
  if (multiplier > 1 && last_code * multiplier <= kLowestCode16 * (multiplier - 1)) {
    return InvalidPosition(
        "multipliers", position,
        absl::StrCat(multiplier, " is not the least that reaches code ", last_code));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPositions(const BlockView& block) {
  const BlockRange all(block, 0, block.header.positions);
  size_t first_slot = 0;
  for (uint32_t i = 0; i < block.header.positions; ++i) {
    if (absl::Status status = CheckPosition(block, all, i, first_slot); !status.ok()) {
      return status;
    }
    first_slot += block.counts[i];
  }
  return absl::OkStatus();
}

absl::StatusOr<BlockView> CheckBlock(std::span<const std::byte> bytes) {
  absl::StatusOr<BlockView> block = OpenBlock(bytes, /*checksums=*/true);
  if (!block.ok() || PositionsAreQuicklySeenValid(*block)) return block;
  if (absl::Status status = CheckPositions(*block); !status.ok()) return status;
  return block;
}

}  // namespace sis
