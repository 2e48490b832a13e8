#include "kernels/records/log_probs.h"

#include <algorithm>
#include <vector>

#include "kernels/decide/decide.h"
#include "kernels/records/log_prob_code.h"
#include "kernels/records/simd_fixed12.h"

namespace sis {
namespace {

constexpr int Width(LogProbEncoding encoding) {
  return static_cast<int>(RowBytes(encoding) * 8 / kGroupPositions);
}

// The multiplier with which a position's used slots fit best. Those too low to be encoded leave the
// set.
uint32_t BehaviorMultiplier(LogProbEncoding encoding, std::span<const float> used) {
  if (encoding != LogProbEncoding::kFixed12) return 0;
  float lowest = 0x1p-6f;
  for (const float log_prob : used) {
    if (log_prob >= kFixed12Floor) lowest = std::min(lowest, log_prob);
  }
  return Fixed12Multiplier(lowest);
}

// The same for current log-probs, where those too low go up to the floor, and no further: they
// would raise the envelope.
uint32_t CurrentMultiplier(LogProbEncoding encoding, std::span<const float> used) {
  if (encoding != LogProbEncoding::kFixed12) return 0;
  float lowest = 0x1p-6f;
  for (const float log_prob : used) {
    if (log_prob != kMinusInfinity) lowest = std::min(lowest, log_prob);
  }
  return Fixed12Multiplier(std::max(lowest, kFixed12Floor));
}

uint8_t RoundBehaviorRow(LogProbEncoding encoding, std::span<const float> row,
                         std::span<float> rounded) {
  const uint32_t multiplier = BehaviorMultiplier(encoding, row);
  uint8_t used = 0;
  for (const float log_prob : row) {
    const uint32_t code = EncodeRoundedDown(encoding, log_prob, multiplier);
    const float value = DecodeLogProb(encoding, code, multiplier);
    if (value == kMinusInfinity) break;
    rounded[used++] = value;
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
  void SetMultiplier(size_t lane, uint32_t multiplier) {
    if (LeadingRows(encoding_) > 0) rows_[0][lane] = multiplier;
  }
  void Set(size_t lane, size_t rank, uint32_t code) {
    rows_[LeadingRows(encoding_) + rank][lane] = code;
  }
  void Write(std::span<std::byte> group) const {
    const size_t row_bytes = RowBytes(encoding_);
    for (size_t row = 0; row < rows_.size(); ++row) {
      PackRow(rows_[row], Width(encoding_), group.subspan(row * row_bytes, row_bytes));
    }
  }

 private:
  const LogProbEncoding encoding_;
  std::vector<RowValues> rows_;
};

// Calls encode(position, encoder, lane) for each of n positions, and writes the groups.
template <typename EncodePosition>
void EncodeGroups(LogProbEncoding encoding, size_t positions, size_t slots, std::span<std::byte> to,
                  const EncodePosition& encode) {
  const size_t group_bytes = GroupBytes(encoding, slots);
  GroupEncoder encoder(encoding, slots);
  for (size_t group = 0; group < GroupCount(positions); ++group) {
    encoder.Clear();
    const size_t first = group * kGroupPositions;
    const size_t lanes = std::min<size_t>(kGroupPositions, positions - first);
    for (size_t lane = 0; lane < lanes; ++lane) encode(first + lane, encoder, lane);
    encoder.Write(to.subspan(group * group_bytes, group_bytes));
  }
}

template <LogProbEncoding kEncoding>
void DecodeRows(std::span<const RowValues> codes, const RowValues& multipliers,
                std::span<std::array<float, kGroupPositions>> rows) {
  for (size_t row = 0; row < rows.size(); ++row) {
    for (size_t lane = 0; lane < kGroupPositions; ++lane) {
      rows[row][lane] = DecodeLogProb(kEncoding, codes[row][lane], multipliers[lane]);
    }
  }
}

}  // namespace

void EncodeBehaviorLogProbs(LogProbEncoding encoding, std::span<const float> log_probs, int slots,
                            std::span<uint8_t> used_slots, std::span<std::byte> to) {
  if (encoding == LogProbEncoding::kFixed12) {
    const size_t whole = used_slots.size() / kGroupPositions * kGroupPositions;
    if (EncodeGroupsOnVectors(log_probs, slots, used_slots.first(whole), to)) {
      log_probs = log_probs.subspan(whole * slots);
      used_slots = used_slots.subspan(whole);
      to = to.subspan(LogProbBytes(encoding, whole, slots));
    }
  }
  EncodeGroups(encoding, used_slots.size(), slots, to,
               [&](size_t position, GroupEncoder& encoder, size_t lane) {
                 const auto row = log_probs.subspan(position * slots, slots);
                 const uint32_t multiplier = BehaviorMultiplier(encoding, row);
                 encoder.SetMultiplier(lane, multiplier);
                 uint8_t used = 0;
                 for (const float log_prob : row) {
                   const uint32_t code = EncodeRoundedDown(encoding, log_prob, multiplier);
                   if (DecodeLogProb(encoding, code, multiplier) == kMinusInfinity) break;
                   encoder.Set(lane, used++, code);
                 }
                 used_slots[position] = used;
               });
}

void RoundBehaviorRows(LogProbEncoding encoding, std::span<const float> rows, int slots,
                       std::span<float> rounded, std::span<uint8_t> used_slots) {
  if (encoding == LogProbEncoding::kFixed12 &&
      RoundRowsOnVectors(rows, slots, rounded, used_slots)) {
    return;
  }
  for (uint8_t& used : used_slots) {
    used = RoundBehaviorRow(encoding, rows.first(slots), rounded.first(slots));
    rows = rows.subspan(slots);
    rounded = rounded.subspan(slots);
  }
}

void EncodeCurrentLogProbs(LogProbEncoding encoding, std::span<const float> log_probs, int slots,
                           std::span<const uint8_t> used_slots, std::span<std::byte> to) {
  EncodeGroups(encoding, used_slots.size(), slots, to,
               [&](size_t position, GroupEncoder& encoder, size_t lane) {
                 const auto used = log_probs.subspan(position * slots, used_slots[position]);
                 const uint32_t multiplier = CurrentMultiplier(encoding, used);
                 encoder.SetMultiplier(lane, multiplier);
                 for (size_t rank = 0; rank < used.size(); ++rank) {
                   encoder.Set(lane, rank, EncodeRoundedUp(encoding, used[rank], multiplier));
                 }
               });
}

GroupDecoder::GroupDecoder(LogProbEncoding encoding, std::span<const std::byte> group)
    : encoding_(encoding), group_(group) {
  if (LeadingRows(encoding) > 0) multipliers_ = UnpackRow(group, Width(encoding));
}

void GroupDecoder::Rows(size_t first, std::span<std::array<float, kGroupPositions>> rows) const {
  // All are unpacked before the first is decoded: a vector that is read just after its elements
  // were written one by one has to wait until they are in the cache.
  std::array<RowValues, kMaxTopK> memory;
  const std::span codes = std::span(memory).first(rows.size());
  UnpackRows(group_.subspan((LeadingRows(encoding_) + first) * RowBytes(encoding_)),
             Width(encoding_), codes);
  // The encoding is told apart outside of the loop, which the compiler can then vectorise.
  switch (encoding_) {
    case LogProbEncoding::kFloat32:
      return DecodeRows<LogProbEncoding::kFloat32>(codes, multipliers_, rows);
    case LogProbEncoding::kFloat16:
      return DecodeRows<LogProbEncoding::kFloat16>(codes, multipliers_, rows);
    case LogProbEncoding::kFixed12:
      return DecodeRows<LogProbEncoding::kFixed12>(codes, multipliers_, rows);
  }
}

void DecodeLogProbs(LogProbEncoding encoding, std::span<const std::byte> from, int slots,
                    std::span<float> log_probs) {
  const size_t positions = log_probs.size() / slots;
  const size_t group_bytes = GroupBytes(encoding, slots);
  std::vector<std::array<float, kGroupPositions>> rows(slots);
  for (size_t group = 0; group < GroupCount(positions); ++group) {
    const GroupDecoder decoder(encoding, from.subspan(group * group_bytes, group_bytes));
    const size_t first = group * kGroupPositions;
    const size_t lanes = std::min<size_t>(kGroupPositions, positions - first);
    decoder.Rows(0, rows);
    for (int rank = 0; rank < slots; ++rank) {
      for (size_t lane = 0; lane < lanes; ++lane) {
        log_probs[(first + lane) * slots + rank] = rows[rank][lane];
      }
    }
  }
}

}  // namespace sis
