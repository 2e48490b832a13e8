// One group's log-probs, rank by rank, from any layout: what the kernel's inner loop reads.
#if defined(SIS_KERNELS_SIMD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_ROWS_INL_H_
#undef SIS_KERNELS_SIMD_ROWS_INL_H_
#else
#define SIS_KERNELS_SIMD_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/encoding.h"
#include "kernels/records/fixed12.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// Ranks are read four at a time.
inline constexpr size_t kRanksAtOnce = 4;

// Far enough to hide the memory's latency behind the arithmetic of what comes before.
inline constexpr size_t kBytesAhead = 8192;

// Prefetching what is not there is harmless.
HWY_INLINE void PrefetchAhead(const void* address, uintptr_t distance = kBytesAhead) {
  hwy::Prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(address) + distance));
}

// Whether slots that are read may be unused. If none is, -inf need not be told apart; in one that
// is after all stands something else, that IsUsed knows.
enum class SlotUse { kAny, kUsed };

// How kLanes values of a row are read. Made for a group; `row` is one of its rows, `lane` a
// multiple of kLanes.
template <LogProbEncoding kEncoding>
class RowReader {
 public:
  explicit RowReader(const std::byte* /*group*/) {}
  template <SlotUse kUse = SlotUse::kAny>
  HWY_INLINE Floats Read(const std::byte* row, size_t lane) const {
    return LoadFloats(reinterpret_cast<const Element*>(row) + lane);
  }
  HWY_INLINE Mask IsUsed(Floats value, size_t /*lane*/) const {
    return hn::Ne(value, Constant(kMinusInfinity));
  }

 private:
  using Element = std::conditional_t<kEncoding == LogProbEncoding::kFloat32, float, uint16_t>;
};

// 2^23 + c for 12-bit values c, kLanes of them from `lane` on, out of a row of 24 bytes. Reads
// nothing beyond it.
HWY_INLINE Floats Unpack12Bits(const uint8_t* row, size_t lane) {
  const Uint32Tag du;
#if HWY_TARGET <= HWY_AVX3
  // Each lane gets the two 16-bit words that its value begins in and ends in.
  static_cast<void>(lane);  // always 0
  HWY_ALIGN static constexpr uint16_t kWords[] = {0, 1, 0, 1,  1, 2,  2,  3,  3,  4, 3,
                                                  4, 4, 5, 5,  6, 6,  7,  6,  7,  7, 8,
                                                  8, 9, 9, 10, 9, 10, 10, 11, 11, 0};
  HWY_ALIGN static constexpr uint32_t kShifts[] = {0, 12, 8, 4, 0, 12, 8, 4,
                                                   0, 12, 8, 4, 0, 12, 8, 4};
  const __m512i packed = _mm512_castsi256_si512(_mm256_maskz_loadu_epi64(7, row));
  const __m512i words = _mm512_permutexvar_epi16(_mm512_load_si512(kWords), packed);
  const Uint32s values{_mm512_srlv_epi32(words, _mm512_load_si512(kShifts))};
#else
  // Two values in every three bytes; 16 bytes that hold those of all lanes.
  const size_t first = lane / 2 * 3;
  const size_t begin = first < 8 ? first : 8;
  HWY_ALIGN static constexpr uint8_t kBytes[] = {0, 1, 0, 0, 1, 2, 0, 0, 3, 4,  0, 0, 4,  5,  0, 0,
                                                 6, 7, 0, 0, 7, 8, 0, 0, 9, 10, 0, 0, 10, 11, 0, 0};
  const hn::Repartition<uint8_t, Uint32Tag> d8;
  const auto bytes =
      hn::Add(hn::Load(d8, kBytes), hn::Set(d8, static_cast<uint8_t>(first - begin)));
  const Uint32s pairs =
      hn::BitCast(du, hn::TableLookupBytes(hn::LoadDup128(d8, row + begin), bytes));
  // Odd values begin in the middle of their first byte.
  const Uint32s values = hn::OddEven(hn::ShiftRight<4>(pairs), pairs);
#endif
  const Uint32s two_to_23 = hn::BitCast(du, Constant(0x1p23f));
  return hn::BitCast(FloatTag(), hn::OrAnd(two_to_23, values, hn::Set(du, 0xfff)));
}

// docs/page_format.md: 1/64 - c * (m * 2^-18), exact at each step. The multipliers m come first.
template <>
class RowReader<LogProbEncoding::kFixed12> {
 public:
  explicit HWY_INLINE RowReader(const std::byte* group) {
    for (size_t lane = 0; lane < kGroupPositions; lane += kLanes) {
      const Floats multipliers = hn::Sub(Unpack(group, lane), Constant(0x1p23f));
      const Floats step = hn::Mul(multipliers, Constant(0x1p-18f));
      steps_[lane / kLanes] = step;
#if HWY_TARGET <= HWY_AVX3
      tops_[lane / kLanes] = hn::Add(Constant(0x1p-6f), hn::Mul(step, Constant(0x1p23f)));
#endif
    }
  }
  template <SlotUse kUse = SlotUse::kAny>
  HWY_INLINE Floats Read(const std::byte* row, size_t lane) const {
    const Floats codes = Unpack(row, lane);
    const Floats values = Decode(codes, lane);
    if constexpr (kUse == SlotUse::kUsed) return values;
    return hn::IfThenElse(hn::Eq(codes, Constant(kUnused)), Constant(kMinusInfinity), values);
  }
  HWY_INLINE Mask IsUsed(Floats value, size_t lane) const {
    return hn::Ne(value, Decode(Constant(kUnused), lane));
  }

 private:
  static constexpr float kUnused = 0x1p23f + static_cast<float>(kFixed12MinusInfinity);

  static HWY_INLINE Floats Unpack(const std::byte* row, size_t lane) {
    return Unpack12Bits(reinterpret_cast<const uint8_t*>(row), lane);
  }
  // Of 2^23 + c.
  HWY_INLINE Floats Decode(Floats codes, size_t lane) const {
    const size_t i = lane / kLanes;
#if HWY_TARGET <= HWY_AVX3
    // One operation, because it is fused: the top, 1/64 + 2^23 * step, has 23 bits, the result 24.
    return hn::NegMulAdd(codes, steps_[i], tops_[i]);
#else
    const Floats c = hn::Sub(codes, Constant(0x1p23f));
    return MinusExactProduct(Constant(0x1p-6f), c, steps_[i]);
#endif
  }

  Floats steps_[kGroupPositions / kLanes];
#if HWY_TARGET <= HWY_AVX3
  Floats tops_[kGroupPositions / kLanes];
#endif
};

// Whether rows are read from memory, or from a copy that was just made.
enum class RowMemory { kFar, kNear };

// A group's rows.
template <LogProbEncoding kEncoding, RowMemory kMemory = RowMemory::kFar>
class RankMajorRows {
 public:
  // The group's first byte, and how far from a row what should be prefetched lies.
  explicit HWY_INLINE RankMajorRows(const std::byte* group, uintptr_t ahead = kBytesAhead)
      : reader_(group), rows_(group + LeadingRows(kEncoding) * kRowBytes), ahead_(ahead) {}

  // Ranks rank to rank + 3 of the kLanes positions from `lane` on.
  template <SlotUse kUse = SlotUse::kAny>
  HWY_INLINE FourFloats Load(size_t lane, size_t rank) const {
    const std::byte* row = rows_ + rank * kRowBytes;
    if (kMemory == RowMemory::kFar && lane == 0) {
      for (size_t i = 0; i < kRanksAtOnce * kRowBytes; i += 64) PrefetchAhead(row + i, ahead_);
    }
    const auto read = [&](size_t i) HWY_ATTR {
      return reader_.template Read<kUse>(row + i * kRowBytes, lane);
    };
    return {{read(0), read(1)}, {read(2), read(3)}};
  }

  // The last one, two or three ranks, from `rank` on.
  template <SlotUse kUse = SlotUse::kAny, size_t kCount>
  HWY_INLINE void LoadLast(size_t lane, size_t rank, Floats (&last)[kCount]) const {
    const std::byte* row = rows_ + rank * kRowBytes;
    if (kMemory == RowMemory::kFar && lane == 0) PrefetchAhead(row, ahead_);
    for (size_t i = 0; i < kCount; ++i) {
      last[i] = reader_.template Read<kUse>(row + i * kRowBytes, lane);
    }
  }

  // Of a value that was read as one of a used slot.
  HWY_INLINE Mask IsUsed(Floats value, size_t lane) const { return reader_.IsUsed(value, lane); }

 private:
  static constexpr size_t kRowBytes = RowBytes(kEncoding);

  RowReader<kEncoding> reader_;
  const std::byte* rows_;
  uintptr_t ahead_;
};

// Token-major values: 16 positions of K, transposed on the fly.
class TokenMajorRows {
 public:
  TokenMajorRows(const float* values, size_t slots) : values_(values), slots_(slots) {}

  template <SlotUse kUse = SlotUse::kAny>
  HWY_INLINE FourFloats Load(size_t lane, size_t rank) const {
    const float* ahead = values_ + lane * slots_ + rank * kLanes;
    for (size_t i = 0; i < kRanksAtOnce * kLanes; i += 16) PrefetchAhead(ahead + i);
    return Transpose(lane, rank);
  }

  template <SlotUse kUse = SlotUse::kAny, size_t kCount>
  HWY_INLINE void LoadLast(size_t lane, size_t rank, Floats (&last)[kCount]) const {
    if (slots_ < kRanksAtOnce) {
      for (size_t i = 0; i < kCount; ++i) last[i] = Gather(lane, rank + i);
      return;
    }
    // Not past the end of the last position's values.
    const size_t first = std::min(rank, slots_ - kRanksAtOnce);
    const FourFloats rows = Transpose(lane, first);
    const Floats in_order[] = {rows.first.first, rows.first.second, rows.second.first,
                               rows.second.second};
    for (size_t i = 0; i < kCount; ++i) last[i] = in_order[rank - first + i];
  }

  HWY_INLINE Mask IsUsed(Floats value, size_t /*lane*/) const {
    return hn::Ne(value, Constant(kMinusInfinity));
  }

 private:
  HWY_INLINE Floats Gather(size_t lane, size_t rank) const {
    HWY_ALIGN float row[kLanes];
    for (size_t i = 0; i < kLanes; ++i) row[i] = values_[(lane + i) * slots_ + rank];
    return hn::Load(FloatTag(), row);
  }

  // Four values of one position, and of those 4, 8 and 12 lanes on, if there are as many.
  template <class D>
  HWY_INLINE hn::Vec<D> FourOf(D d, const float* values) const {
    if constexpr (hn::MaxLanes(D()) == 4) {
      return hn::LoadU(d, values);
    } else {
      const hn::Half<D> half;
      const float* upper = values + hn::MaxLanes(D()) / 2 * slots_;
      return hn::Combine(d, FourOf(half, upper), FourOf(half, values));
    }
  }

  HWY_INLINE FourFloats Transpose(size_t lane, size_t rank) const {
    const FloatTag d;
    const hn::RepartitionToWide<FloatTag> dw;
    const float* values = values_ + lane * slots_ + rank;
    const Floats v0 = FourOf(d, values);
    const Floats v1 = FourOf(d, values + slots_);
    const Floats v2 = FourOf(d, values + 2 * slots_);
    const Floats v3 = FourOf(d, values + 3 * slots_);
    const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, v0, v1));
    const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, v2, v3));
    const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, v0, v1));
    const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, v2, v3));
    return {{hn::BitCast(d, hn::InterleaveLower(dw, low01, low23)),
             hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23))},
            {hn::BitCast(d, hn::InterleaveLower(dw, high01, high23)),
             hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23))}};
  }

  const float* values_;
  size_t slots_;
};

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
