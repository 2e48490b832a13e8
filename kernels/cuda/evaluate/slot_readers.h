// Reads the log-probs of one position slot by slot, in each layout of
// kernels/records/grouped_log_probs.h and ragged_log_probs.h. Rows lie on a device, aligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/numerics/host_device.h"
#include "kernels/records/encoding.h"
#include "kernels/records/log_prob_code.h"

namespace sis::cuda {

// How recorded log-probs lie; the encoding stands beside. kNone: the REDUCED form has none at
// slots. Token-major ones are float32. Current values are float32 too, token-major, or where the
// recorded ones are ragged those of the used slots, position by position.
enum class RowLayout : uint8_t { kNone, kTokenMajor, kGrouped, kRagged };

// Where readers find the two values of a slot. Places are asked for slot by slot.
struct Place {
  int recorded;
  int current;
};

// Where rows have all slots.
class DensePlaces {
 public:
  SIS_HOST_DEVICE Place Next() {
    const int slot = slot_++;
    return {slot, slot};
  }

 private:
  int slot_ = 0;
};

// Where they have the used ones: recorded ones as RaggedSlot says, without counting again for every
// slot.
class RaggedPlaces {
 public:
  // `counts`: of the position's group, four in a word; `begin`: of its first slot, in both.
  SIS_HOST_DEVICE RaggedPlaces(const uint64_t* counts, int lane, uint32_t begin)
      : place_{static_cast<int>(begin), static_cast<int>(begin)} {
    for (int i = 0; i < kWords; ++i) {
      const int before = lane - 4 * i;
      const uint64_t lanes_before = before >= 4  ? ~uint64_t{0}
                                    : before > 0 ? (uint64_t{1} << 16 * before) - 1
                                                 : 0;
      const uint64_t is_before = kOnes & lanes_before;
      const uint64_t has_slot = (counts[i] | kHighBits) - kOnes;
      place_.recorded += Ones(has_slot & is_before << 15);
      // The four of a word, added up in its highest lane.
      place_.current += static_cast<int>((counts[i] & lanes_before) * kOnes >> 48);
      left_[i] = has_slot - is_before;
    }
  }
  // Of the position's used slots only. After slot r come those of rank r in later lanes, and of
  // rank r + 1 in the lanes before.
  SIS_HOST_DEVICE Place Next() {
    const Place place = place_;
    uint64_t lanes = 0;
    for (int i = 0; i < kWords; ++i) {
      lanes |= (left_[i] & kHighBits) >> i;
      left_[i] -= kOnes;
    }
    place_.recorded += Ones(lanes);
    ++place_.current;
    return place;
  }

 private:
  static constexpr int kWords = kGroupPositions / 4;
  static constexpr uint64_t kOnes = 0x0001000100010001;
  static constexpr uint64_t kHighBits = kOnes << 15;

  // Of std::popcount nvcc 13 makes, without a word, code for the device that is undefined.
  SIS_HOST_DEVICE static int Ones(uint64_t bits) { return __builtin_popcountll(bits); }

  // Of each lane, above a bit that is gone when there are none: its slots after this rank, or in
  // lanes before, after the next. K is below 2^15, so that no lane borrows from another.
  uint64_t left_[kWords];
  Place place_;
};

// `lane` counts the positions from lane 0 of the first group on.

// Values one after the other: a token-major row, or all that are ragged.
template <LogProbEncoding kEncoding>
class ValueReader {
 public:
  SIS_HOST_DEVICE explicit ValueReader(const std::byte* values, uint32_t multiplier = 1)
      : values_(values), multiplier_(multiplier) {}
  SIS_HOST_DEVICE float At(int place) const {
    return DecodeLogProb(kEncoding, CodeAt<kEncoding>(values_, static_cast<size_t>(place)),
                         multiplier_);
  }

 private:
  const std::byte* values_;
  uint32_t multiplier_;
};

template <LogProbEncoding kEncoding>
class GroupedReader {
 public:
  SIS_HOST_DEVICE GroupedReader(const std::byte* rows, size_t lane, int slots)
      : pair_(rows + lane / kGroupPositions * GroupBytes(kEncoding, static_cast<size_t>(slots)) +
              lane % kGroupPositions / 2 * 2 * LogProbBits(kEncoding) / 8),
        odd_(lane % 2),
        multiplier_(LeadingRows(kEncoding) > 0 ? Code(0) : 1) {}
  SIS_HOST_DEVICE float At(int slot) const {
    return DecodeLogProb(kEncoding, Code(static_cast<size_t>(slot) + LeadingRows(kEncoding)),
                         multiplier_);
  }

 private:
  SIS_HOST_DEVICE uint32_t Code(size_t row) const {
    return CodeAt<kEncoding>(pair_ + row * RowBytes(kEncoding), odd_);
  }

  const std::byte* pair_;  // of lanes, in the first row
  size_t odd_;
  uint32_t multiplier_;
};

}  // namespace sis::cuda
