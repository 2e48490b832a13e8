// Rows of ids, packed (packed_row.h) on vectors.
#if defined(SIS_KERNELS_RECORDS_SIMD_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_RECORDS_SIMD_PACK_INL_H_
#undef SIS_KERNELS_RECORDS_SIMD_PACK_INL_H_
#else
#define SIS_KERNELS_RECORDS_SIMD_PACK_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/packed_row.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// The values of a row, lane after lane.
using RowVectors = Int32s[kGroupPositions / kLanes];

// For rows of one width. Four values at a time, which get 16 bytes: each is shifted to where it
// begins in its first byte; then the bytes of the even ones and those of the odd ones move to their
// places, where neighbours share one.
class RowPacker {
 public:
  // Width is in [kLeast, kMost]: no two even values share a byte, and a shifted one is in four.
  static constexpr int kLeast = 8;
  static constexpr int kMost = 24;

  explicit RowPacker(int width) : width_(width), shares_bytes_(width % 2 != 0) {
    for (int i = 0; i < kGroupPositions; ++i) {
      int& begin = begins_[i / 4];
      if (i % 4 == 0) begin = i * width / 8;
      const int first_bit = i * width - begin * 8;
      const int end_bit = first_bit + width;
      shifts_[i] = static_cast<uint32_t>(first_bit % 8);
      uint8_t* bytes = (i % 2 == 0 ? even_bytes_ : odd_bytes_) + i / 4 * kBlockBytes;
      if (i % 4 < 2) std::fill(bytes, bytes + kBlockBytes, kZero);
      for (int byte = first_bit / 8; byte * 8 < end_bit; ++byte) {
        bytes[byte] = static_cast<uint8_t>(i % 4 * 4 + byte - first_bit / 8);
      }
    }
  }

  int width() const { return width_; }
  // That Pack writes: behind the row they hold anything.
  size_t WrittenBytes() const { return begins_[3] + kBlockBytes; }

  HWY_INLINE void Pack(const RowVectors& values, std::byte* row) const {
    const Uint32Tag du;
    const BytesTag d8;
    for (size_t lane = 0; lane < kGroupPositions; lane += kLanes) {
      const auto shifted = hn::BitCast(
          d8, hn::Shl(hn::BitCast(du, values[lane / kLanes]), hn::Load(du, shifts_ + lane)));
      const auto even = hn::TableLookupBytesOr0(shifted, hn::Load(d8, even_bytes_ + 4 * lane));
      const auto odd = hn::TableLookupBytesOr0(shifted, hn::Load(d8, odd_bytes_ + 4 * lane));
      Store(d8, hn::Or(even, odd), lane / 4, row);
    }
  }

 private:
  using BytesTag = hn::Repartition<uint8_t, Uint32Tag>;
  static constexpr int kBlockBytes = 16;
  static constexpr uint8_t kZero = 0x80;

  // Block after block: what one writes behind its values, the next replaces.
  template <class D>
  HWY_INLINE void Store(D d, hn::Vec<D> blocks, size_t block, std::byte* row) const {
    if constexpr (hn::MaxLanes(D()) > kBlockBytes) {
      const hn::Half<D> half;
      Store(half, hn::LowerHalf(half, blocks), block, row);
      Store(half, hn::UpperHalf(half, blocks), block + hn::MaxLanes(D()) / kBlockBytes / 2, row);
    } else {
      auto* to = reinterpret_cast<uint8_t*>(row) + begins_[block];
      const bool begins_within_byte = shares_bytes_ && block % 2 != 0;
      const uint8_t before = begins_within_byte ? *to : 0;
      hn::StoreU(blocks, d, to);
      if (begins_within_byte) *to |= before;
    }
  }

  const int width_;
  const bool shares_bytes_;  // blocks 1 and 3 begin within the last byte of the ones before
  int begins_[4];            // of the blocks, in the row
  HWY_ALIGN uint32_t shifts_[kGroupPositions];
  HWY_ALIGN uint8_t even_bytes_[4 * kGroupPositions];
  HWY_ALIGN uint8_t odd_bytes_[4 * kGroupPositions];
};

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
