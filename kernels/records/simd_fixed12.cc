#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/numerics/simd_targets.h"
#include "kernels/records/log_probs.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/records/simd_fixed12.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/records/encoding.h"
#include "kernels/records/fixed12.h"
#if HWY_TARGET != HWY_SCALAR
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/simd_fixed12-inl.h"
#include "kernels/records/simd_rows-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

// The caller does it one by one.
bool RoundRows(const float*, size_t, size_t, float*, uint16_t*) { return false; }
bool EncodeGroups(const float*, size_t, size_t, uint16_t*, std::byte*, float*) { return false; }

#else

// How many slots of a row can be encoded.
HWY_INLINE uint16_t UsedSlots(const float* row, size_t slots) {
  while (slots > 0 && !(row[slots - 1] >= kFixed12Floor)) --slots;
  return static_cast<uint16_t>(slots);
}

HWY_INLINE uint32_t Multiplier(const float* row, uint16_t used) {
  return Fixed12Multiplier(used == 0 ? 0x1p-6f : row[used - 1]);
}

bool RoundRows(const float* rows, size_t positions, size_t slots, float* rounded,
               uint16_t* used_slots) {
  const FloatTag d;
  const float* end = rows + positions * slots;
  for (size_t i = 0; i < positions; ++i, rows += slots, rounded += slots) {
    used_slots[i] = UsedSlots(rows, slots);
    const Floats multiplier = Constant(static_cast<float>(Multiplier(rows, used_slots[i])));
    const Floats step = hn::Mul(multiplier, Constant(0x1p-18f));
    const auto round = [&](Floats x)
                           HWY_ATTR { return Decode(CodesRoundedDown(x, multiplier), step); };
    for (size_t slot = 0; slot < slots; slot += kLanes) {
      if (static_cast<size_t>(end - rows) >= slot + kLanes) {
        // What this puts into the next row, that row's turn replaces.
        hn::StoreU(round(hn::LoadU(d, rows + slot)), d, rounded + slot);
      } else {
        HWY_ALIGN float last[kLanes] = {};
        std::memcpy(last, rows + slot, (slots - slot) * sizeof(float));
        hn::Store(round(hn::Load(d, last)), d, last);
        std::memcpy(rounded + slot, last, (slots - slot) * sizeof(float));
      }
    }
  }
  return true;
}

// Codes of kLanes positions from `lane` on into their part of a row of 24 bytes.
HWY_INLINE void Pack(Floats codes, size_t lane, std::byte* row) {
  const Uint64Tag d64;
  const Uint64s pairs = hn::BitCast(d64, Truncate(codes));
  const Uint64s joined = hn::Or(hn::And(pairs, hn::Set(d64, 0xfff)), hn::ShiftRight<20>(pairs));
#if HWY_TARGET <= HWY_AVX3
  // Six bytes of every 128 bits side by side, then those of all four.
  static_cast<void>(lane);  // always 0
  HWY_ALIGN static constexpr int8_t kBytes[] = {0,  1,  2,  8,  9,  10, -1, -1,
                                                -1, -1, -1, -1, -1, -1, -1, -1};
  HWY_ALIGN static constexpr uint16_t kWords[] = {0,  1, 2, 8, 9, 10, 16, 17, 18, 24, 25,
                                                  26, 3, 3, 3, 3, 3,  3,  3,  3,  3,  3,
                                                  3,  3, 3, 3, 3, 3,  3,  3,  3,  3};
  const __m512i bytes =
      _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kBytes)));
  const __m512i sixes = _mm512_shuffle_epi8(joined.raw, bytes);
  const __m512i packed = _mm512_permutexvar_epi16(_mm512_load_si512(kWords), sixes);
  _mm256_mask_storeu_epi64(row, 7, _mm512_castsi512_si256(packed));
#else
  HWY_ALIGN uint64_t of_24_bits[kLanes / 2];
  hn::Store(joined, d64, of_24_bits);
  std::byte* to = row + lane / 2 * 3;
  for (size_t i = 0; i < kLanes / 2; i += 2, to += 6) {
    const uint64_t of_48_bits = of_24_bits[i] | of_24_bits[i + 1] << 24;
    std::memcpy(to, &of_48_bits, 6);
  }
#endif
}

// Of kLanes positions of a group, from `lane` on; their used slots are noted.
HWY_INLINE Floats Multipliers(const TokenMajorRows<float>& rows, const float* values, size_t slots,
                              size_t lane, uint16_t* used_slots) {
  Floats lowest[1];
  ReadRanks(rows, lane, slots - 1, lowest);
  if (hn::AllTrue(FloatTag(), hn::Ge(lowest[0], Constant(kFixed12Floor)))) {
    std::fill_n(used_slots + lane, kLanes, static_cast<uint16_t>(slots));
    return MultipliersFor(lowest[0]);
  }
  HWY_ALIGN float multipliers[kLanes];
  for (size_t i = 0; i < kLanes; ++i) {
    const float* row = values + (lane + i) * slots;
    used_slots[lane + i] = UsedSlots(row, slots);
    multipliers[i] = static_cast<float>(Multiplier(row, used_slots[lane + i]));
  }
  return hn::Load(FloatTag(), multipliers);
}

HWY_INLINE void EncodeGroup(const float* values, size_t slots, uint16_t* used_slots,
                            std::byte* group, float* rounded) {
  constexpr size_t kRowBytes = RowBytes(LogProbEncoding::kFixed12);
  const TokenMajorRows<float> rows(values, slots);
  std::byte* first_row = group + kRowBytes;
  for (size_t lane = 0; lane < kGroupPositions; lane += kLanes) {
    const Floats multipliers = Multipliers(rows, values, slots, lane, used_slots);
    const Floats steps = hn::Mul(multipliers, Constant(0x1p-18f));
    Pack(multipliers, lane, group);
    VisitRanks(
        slots, [&]<size_t kCount>(size_t rank) HWY_ATTR __attribute__((always_inline)) {
          Floats values[kCount];
          ReadRanks(rows, lane, rank, values);
          for (size_t i = 0; i < kCount; ++i) {
            values[i] = CodesRoundedDown(values[i], multipliers);
            Pack(values[i], lane, first_row + (rank + i) * kRowBytes);
          }
          if (rounded == nullptr) return;
          for (Floats& value : values) value = Decode(value, steps);
          StoreTokenMajor(values, slots, rounded + lane * slots + rank);
        });
  }
}

bool EncodeGroups(const float* rows, size_t positions, size_t slots, uint16_t* used_slots,
                  std::byte* to, float* rounded) {
  for (size_t i = 0; i < positions; i += kGroupPositions) {
    EncodeGroup(rows + i * slots, slots, used_slots + i, to,
                rounded == nullptr ? nullptr : rounded + i * slots);
    to += GroupBytes(LogProbEncoding::kFixed12, slots);
  }
  return true;
}

#endif  // HWY_TARGET

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(RoundRows);
HWY_EXPORT(EncodeGroups);

}  // namespace

bool RoundRowsOnVectors(std::span<const float> rows, int slots, std::span<float> rounded,
                        std::span<uint16_t> used_slots) {
  return HWY_DYNAMIC_DISPATCH(RoundRows)(rows.data(), used_slots.size(), slots, rounded.data(),
                                         used_slots.data());
}

bool EncodeGroupsOnVectors(std::span<const float> rows, int slots, std::span<uint16_t> used_slots,
                           std::span<std::byte> to, std::span<float> rounded) {
  return HWY_DYNAMIC_DISPATCH(EncodeGroups)(rows.data(), used_slots.size(), slots,
                                            used_slots.data(), to.data(),
                                            rounded.empty() ? nullptr : rounded.data());
}

}  // namespace sis
#endif
