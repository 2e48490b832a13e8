#include "kernels/records/log_probs.h"

#include <algorithm>
#include <vector>

#include "kernels/numerics/log_prob.h"
#include "kernels/records/log_prob_code.h"
#include "kernels/records/packed_row.h"

namespace sis {
namespace {

uint16_t RoundBehaviorRow(LogProbEncoding encoding, std::span<const float> row,
                          std::span<float> rounded) {
  const auto [used, multiplier] = FitRow(encoding, row);
  for (size_t slot = 0; slot < used; ++slot) {
    const uint32_t code = EncodeRoundedDown(encoding, row[slot], multiplier);
    rounded[slot] = DecodeLogProb(encoding, code, multiplier);
  }
  std::ranges::fill(rounded.subspan(used), kMinusInfinity);
  return used;
}

// The codes of a group, transposed on the way to its rows.
class GroupEncoder {
 public:
  GroupEncoder(LogProbEncoding encoding, size_t slots)
      : encoding_(encoding), rows_(LeadingRows(encoding) + slots) {}

  // All positions unused.
  void Clear() {
    const uint32_t unused = EncodeRoundedDown(encoding_, kMinusInfinity, 1);
    for (RowValues& row : rows_) row.fill(unused);
    if (LeadingRows(encoding_) > 0) rows_[0].fill(1);
  }
  // Gives how many slots of the row are left used.
  uint16_t EncodeRow(size_t lane, std::span<const float> row) {
    const auto [used, multiplier] = FitRow(encoding_, row);
    if (LeadingRows(encoding_) > 0) rows_[0][lane] = multiplier;
    for (size_t slot = 0; slot < used; ++slot) {
      rows_[LeadingRows(encoding_) + slot][lane] =
          EncodeRoundedDown(encoding_, row[slot], multiplier);
    }
    return used;
  }
  void Write(std::span<std::byte> group) const {
    const size_t row_bytes = RowBytes(encoding_);
    for (size_t row = 0; row < rows_.size(); ++row) {
      PackRow(rows_[row], LogProbBits(encoding_), group.subspan(row * row_bytes, row_bytes));
    }
  }

 private:
  const LogProbEncoding encoding_;
  std::vector<RowValues> rows_;
};

}  // namespace

RowFit FitRow(LogProbEncoding encoding, std::span<const float> row) {
  const float lowest = LowestLogProb(encoding);
  size_t used = 0;
  while (used < row.size() && !(row[used] < lowest)) ++used;
  const bool has_multiplier = encoding == LogProbEncoding::kFixed12 && used > 0;
  return {static_cast<uint16_t>(used), has_multiplier ? Fixed12Multiplier(row[used - 1]) : 1};
}

void EncodeBehaviorLogProbs(LogProbEncoding encoding, std::span<const float> log_probs, int slots,
                            std::span<uint16_t> used_slots, std::span<std::byte> to,
                            std::span<float> rounded) {
  if (encoding == LogProbEncoding::kFixed12) {
    const size_t whole = used_slots.size() / kGroupPositions * kGroupPositions;
    if (EncodeGroupsOnVectors(log_probs.first(whole * slots), slots, used_slots.first(whole), to,
                              rounded)) {
      log_probs = log_probs.subspan(whole * slots);
      if (!rounded.empty()) rounded = rounded.subspan(whole * slots);
      used_slots = used_slots.subspan(whole);
      to = to.subspan(LogProbBytes(encoding, whole, slots));
    }
  }
  const size_t group_bytes = GroupBytes(encoding, slots);
  GroupEncoder encoder(encoding, slots);
  for (size_t first = 0; first < used_slots.size(); first += kGroupPositions) {
    encoder.Clear();
    const size_t lanes = std::min<size_t>(kGroupPositions, used_slots.size() - first);
    for (size_t lane = 0; lane < lanes; ++lane) {
      const auto row = log_probs.subspan((first + lane) * slots, slots);
      used_slots[first + lane] = encoder.EncodeRow(lane, row);
    }
    encoder.Write(to.first(group_bytes));
    to = to.subspan(group_bytes);
  }
  if (!rounded.empty()) RoundBehaviorRows(encoding, log_probs, slots, rounded, used_slots);
}

void RoundBehaviorRows(LogProbEncoding encoding, std::span<const float> rows, int slots,
                       std::span<float> rounded, std::span<uint16_t> used_slots) {
  if (encoding == LogProbEncoding::kFixed12 &&
      RoundRowsOnVectors(rows, slots, rounded, used_slots)) {
    return;
  }
  for (uint16_t& used : used_slots) {
    used = RoundBehaviorRow(encoding, rows.first(slots), rounded.first(slots));
    rows = rows.subspan(slots);
    rounded = rounded.subspan(slots);
  }
}

}  // namespace sis
