#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/block/read.h"
#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/block/simd_read.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/block/ids-inl.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

void Ids(const BlockView& block, const std::byte* from, std::span<int32_t> ids) {
  const size_t whole = ids.size() / kLanes * kLanes;
  VisitIdBytes(block.header.id_bytes, [&]<size_t kIdBytes>() HWY_ATTR {
    const std::byte* const end = block.bytes.data() + block.bytes.size();
    UnpackIds<kIdBytes>(from, end, whole, ids.data());
    for (size_t i = whole; i < ids.size(); ++i) ids[i] = BlockId(from, i, kIdBytes);
  });
}

// Fills rows [T, slots]. read(position, used slot) returns a vector whose first value is the
// slot's, and read_one(position, used slot) only that value. `bytes` begins with the section. A
// slot has `slot_bytes`, and read loads `vector_bytes` from it on.
template <typename T, class Read, class ReadOne>
HWY_INLINE void Rows(const BlockView& block, std::span<const std::byte> bytes, size_t slot_bytes,
                     size_t vector_bytes, size_t slots, T unused, std::span<T> rows,
                     const Read& read, const ReadOne& read_one) {
  const hn::Rebind<T, FloatTag> d;
  const auto all_unused = hn::Set(d, unused);
  size_t used = 0;
  for (uint32_t i = 0; i < block.header.positions; ++i) {
    const size_t count = block.counts[i];
    T* const row = rows.data() + i * slots;
    // Vectors may end beyond the row, in later rows, and beyond the used slots.
    if (HWY_LIKELY(i * slots + slots + kLanes <= rows.size() &&
                   (used + count) * slot_bytes + vector_bytes <= bytes.size())) {
      size_t slot = 0;
      for (; slot < count; slot += kLanes) {
        const auto some = read(i, used + slot);
        hn::StoreU(hn::IfThenElse(hn::FirstN(d, count - slot), some, all_unused), d, row + slot);
      }
      for (; slot < slots; slot += kLanes) hn::StoreU(all_unused, d, row + slot);
    } else {
      for (size_t slot = 0; slot < count; ++slot) row[slot] = read_one(i, used + slot);
      std::fill(row + count, row + slots, unused);
    }
    used += count;
  }
}

std::span<const std::byte> From(const BlockView& block, const std::byte* section) {
  return block.bytes.subspan(static_cast<size_t>(section - block.bytes.data()));
}

void IdRows(const BlockView& block, size_t slots, std::span<int32_t> ids) {
  VisitIdBytes(block.header.id_bytes, [&]<size_t kIdBytes>() HWY_ATTR {
    Rows(
        block, From(block, block.ids), kIdBytes, kIdVectorBytes<kIdBytes>, slots, -1, ids,
        [&](uint32_t, size_t used)
            HWY_ATTR { return LoadIds<kIdBytes>(block.ids + used * kIdBytes); },
        [&](uint32_t, size_t used) { return BlockId(block.ids, used, kIdBytes); });
  });
}

void LogProbRows(const BlockView& block, size_t slots, std::span<float> log_probs) {
  const BlockRange all(block, 0, block.header.positions);
  const auto read_one = [&](uint32_t i, size_t used) { return all.LogProbAt(i, used); };
  const auto bytes = From(block, block.log_probs);
  if (block.header.fixed()) {
    const auto* codes = reinterpret_cast<const uint16_t*>(block.log_probs);
    const auto read = [&](uint32_t i, size_t used) HWY_ATTR {
      const hn::Rebind<uint16_t, FloatTag> d16;
      const Int32s some = hn::PromoteTo(Int32Tag(), hn::LoadU(d16, codes + used));
      const Floats multiplier = Constant(block.multipliers[i]);
      const Floats scaled =
          MinusExactProduct(Constant(4096.0f), hn::ConvertTo(FloatTag(), some), multiplier);
      return hn::Mul(scaled, Constant(0x1p-18f));
    };
    Rows(block, bytes, sizeof(uint16_t), kLanes * sizeof(uint16_t), slots, kMinusInfinity,
         log_probs, read, read_one);
  } else {
    const auto* values = reinterpret_cast<const float*>(block.log_probs);
    const auto read = [&](uint32_t, size_t used) HWY_ATTR { return LoadFloats(values + used); };
    Rows(block, bytes, sizeof(float), kLanes * sizeof(float), slots, kMinusInfinity, log_probs,
         read, read_one);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(Ids);
HWY_EXPORT(IdRows);
HWY_EXPORT(LogProbRows);

}  // namespace

void ReadBlockIds(const BlockView& block, std::span<int32_t> sampled_ids, std::span<int32_t> ids) {
  HWY_DYNAMIC_DISPATCH(Ids)(block, block.sampled_ids, sampled_ids);
  HWY_DYNAMIC_DISPATCH(Ids)(block, block.ids, ids);
}

void ReadBlockIdRows(const BlockView& block, size_t slots, std::span<int32_t> ids) {
  HWY_DYNAMIC_DISPATCH(IdRows)(block, slots, ids);
}

void ReadBlockLogProbRows(const BlockView& block, size_t slots, std::span<float> log_probs) {
  HWY_DYNAMIC_DISPATCH(LogProbRows)(block, slots, log_probs);
}

}  // namespace sis
#endif
