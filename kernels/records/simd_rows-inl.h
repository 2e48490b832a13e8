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
#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/encoding.h"
#include "kernels/records/fixed12.h"
#include "kernels/records/record_view.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// A group of positions is one vector, or the few that it takes on narrower machines.
static_assert(kGroupPositions % kLanes == 0);

// Ranks are read four at a time.
inline constexpr size_t kRanksAtOnce = 4;

// Calls visit.operator()<kCount>(rank) for the last `count` ranks, fewer than four, if there are
// any.
template <class Visitor>
HWY_INLINE void VisitLastRanks(size_t rank, size_t count, const Visitor& visit) {
  switch (count) {
    case 1:
      return visit.template operator()<1>(rank);
    case 2:
      return visit.template operator()<2>(rank);
    case 3:
      return visit.template operator()<3>(rank);
  }
}

// Calls visit.operator()<kCount>(rank) for the ranks [rank, rank + kCount): four at a time, then
// those that are left.
template <class Visitor>
HWY_INLINE void VisitRanks(size_t slots, const Visitor& visit) {
  size_t rank = 0;
  for (; rank + kRanksAtOnce <= slots; rank += kRanksAtOnce) {
    visit.template operator()<kRanksAtOnce>(rank);
  }
  VisitLastRanks(rank, slots - rank, visit);
}

// The kCount ranks from `rank` on of the kLanes positions from `lane` on.
template <size_t kCount, class Rows>
HWY_INLINE void ReadRanks(const Rows& rows, size_t lane, size_t rank,
                          typename Rows::Values (&to)[kCount]) {
  if constexpr (kCount == kRanksAtOnce) {
    const auto four = rows.Load(lane, rank);
    to[0] = four.first.first;
    to[1] = four.first.second;
    to[2] = four.second.first;
    to[3] = four.second.second;
  } else {
    rows.LoadLast(lane, rank, to);
  }
}

// Far enough to hide the memory's latency behind arithmetic.
inline constexpr size_t kBytesAhead = 8192;

// Prefetching what is not there is harmless.
HWY_INLINE void PrefetchAhead(const void* address, uintptr_t distance = kBytesAhead) {
  hwy::Prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(address) + distance));
}

// Whether slots that are read may be unused. Where they are expected not to be, -inf is not told
// apart, and an unused slot reads as another value, which IsUsed recognises.
enum class SlotUse { kAny, kUsed };

// Reads kLanes values of a group's row, from a lane that is a multiple of kLanes.
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

// Whether rows lie in memory, or in a copy that was just made, or is prefetched by who reads it.
enum class RowMemory { kFar, kNear };

// A group's rows.
template <LogProbEncoding kEncoding, RowMemory kMemory = RowMemory::kFar>
class RankMajorRows {
 public:
  using Values = Floats;

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

  // Of a value that was read with SlotUse::kUsed.
  HWY_INLINE Mask IsUsed(Floats value, size_t lane) const { return reader_.IsUsed(value, lane); }

 private:
  static constexpr size_t kRowBytes = RowBytes(kEncoding);

  RowReader<kEncoding> reader_;
  const std::byte* rows_;
  uintptr_t ahead_;
};

// Transposes every four lanes of four vectors.
template <class D, class V = hn::Vec<D>>
HWY_INLINE Pair<Pair<V>> TransposeFours(D d, V v0, V v1, V v2, V v3) {
  const hn::RepartitionToWide<D> dw;
  const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, v0, v1));
  const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, v2, v3));
  const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, v0, v1));
  const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, v2, v3));
  return {{hn::BitCast(d, hn::InterleaveLower(dw, low01, low23)),
           hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23))},
          {hn::BitCast(d, hn::InterleaveLower(dw, high01, high23)),
           hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23))}};
}

// 16 positions of K values of 32 bits, token after token, transposed on the fly.
template <typename T, RowMemory kMemory = RowMemory::kFar>
class TokenMajorRows {
 public:
  using Tag = hn::Rebind<T, FloatTag>;
  using Values = hn::Vec<Tag>;

  TokenMajorRows(const T* values, size_t slots) : values_(values), slots_(slots) {}

  template <SlotUse kUse = SlotUse::kAny>
  HWY_INLINE Pair<Pair<Values>> Load(size_t lane, size_t rank) const {
    if constexpr (kMemory == RowMemory::kFar) {
      const T* ahead = values_ + lane * slots_ + rank * kLanes;
      for (size_t i = 0; i < kRanksAtOnce * kLanes; i += 16) PrefetchAhead(ahead + i);
    }
    return Transpose(lane, rank);
  }

  template <SlotUse kUse = SlotUse::kAny, size_t kCount>
  HWY_INLINE void LoadLast(size_t lane, size_t rank, Values (&last)[kCount]) const {
    if (slots_ < kRanksAtOnce) {
      for (size_t i = 0; i < kCount; ++i) last[i] = Gather(lane, rank + i);
      return;
    }
    // Not past the end of the last position's values.
    const size_t first = std::min(rank, slots_ - kRanksAtOnce);
    const Pair<Pair<Values>> rows = Transpose(lane, first);
    const Values in_order[] = {rows.first.first, rows.first.second, rows.second.first,
                               rows.second.second};
    for (size_t i = 0; i < kCount; ++i) last[i] = in_order[rank - first + i];
  }

  HWY_INLINE Mask IsUsed(Floats value, size_t /*lane*/) const {
    return hn::Ne(value, Constant(kMinusInfinity));
  }

 private:
  HWY_INLINE Values Gather(size_t lane, size_t rank) const {
    HWY_ALIGN T row[kLanes];
    for (size_t i = 0; i < kLanes; ++i) row[i] = values_[(lane + i) * slots_ + rank];
    return hn::Load(Tag(), row);
  }

  // Four values of one position, and of those 4, 8 and 12 lanes on, if there are as many.
  template <class D>
  HWY_INLINE hn::Vec<D> FourOf(D d, const T* values) const {
    if constexpr (hn::MaxLanes(D()) == 4) {
      return hn::LoadU(d, values);
    } else {
      const hn::Half<D> half;
      const T* upper = values + hn::MaxLanes(D()) / 2 * slots_;
      return hn::Combine(d, FourOf(half, upper), FourOf(half, values));
    }
  }

  HWY_INLINE Pair<Pair<Values>> Transpose(size_t lane, size_t rank) const {
    const Tag d;
    const T* values = values_ + lane * slots_ + rank;
    const Values v0 = FourOf(d, values);
    const Values v1 = FourOf(d, values + slots_);
    const Values v2 = FourOf(d, values + 2 * slots_);
    const Values v3 = FourOf(d, values + 3 * slots_);
    return TransposeFours(d, v0, v1, v2, v3);
  }

  const T* values_;
  size_t slots_;
};

// Puts the ranks of kLanes positions, a rank a vector, to where they lie token after token: the
// first rank of the first position at `to`.
template <class D>
HWY_INLINE void StoreFours(D d, hn::Vec<D> fours, size_t slots, float* to) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(fours, d, to);
  } else {
    const hn::Half<D> half;
    StoreFours(half, hn::LowerHalf(half, fours), slots, to);
    StoreFours(half, hn::UpperHalf(half, fours), slots, to + hn::MaxLanes(D()) / 2 * slots);
  }
}
template <size_t kCount>
HWY_INLINE void StoreTokenMajor(const Floats (&ranks)[kCount], size_t slots, float* to) {
  const FloatTag d;
  if constexpr (kCount == kRanksAtOnce) {
    const Pair<Pair<Floats>> positions = TransposeFours(d, ranks[0], ranks[1], ranks[2], ranks[3]);
    StoreFours(d, positions.first.first, slots, to);
    StoreFours(d, positions.first.second, slots, to + slots);
    StoreFours(d, positions.second.first, slots, to + 2 * slots);
    StoreFours(d, positions.second.second, slots, to + 3 * slots);
  } else {
    for (size_t i = 0; i < kCount; ++i) {
      HWY_ALIGN float lanes[kLanes];
      hn::Store(ranks[i], d, lanes);
      for (size_t lane = 0; lane < kLanes; ++lane) to[lane * slots + i] = lanes[lane];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
