// Rows of packed ids (packed_row.h), unpacked on vectors.
#if defined(SIS_KERNELS_CODEC_SIMD_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_CODEC_SIMD_UNPACK_INL_H_
#undef SIS_KERNELS_CODEC_SIMD_UNPACK_INL_H_
#else
#define SIS_KERNELS_CODEC_SIMD_UNPACK_INL_H_
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

// For rows of one width. Four values at a time, which are in 16 bytes: each moves to its lane with
// the bytes that it shares with its neighbours, whose bits then go.
class RowUnpacker {
 public:
  // Width is in [kLeast, kMost]: a row has 16 bytes, and a value is in four.
  static constexpr int kLeast = 8;
  static constexpr int kMost = 24;

  explicit RowUnpacker(int width) : width_(width), mask_((uint32_t{1} << width) - 1) {
    const int row_bytes = static_cast<int>(PackedRowBytes(width));
    for (int i = 0; i < kGroupPositions; ++i) {
      int& begin = begins_[i / 4];
      if (i % 4 == 0) begin = std::min(i * width / 8, row_bytes - kBlockBytes);
      const int first_bit = i * width - begin * 8;
      const int first_byte = std::min(first_bit / 8, kBlockBytes - 4);
      for (int byte = 0; byte < 4; ++byte) {
        bytes_[4 * i + byte] = static_cast<uint8_t>(first_byte + byte);
      }
      shifts_[i] = static_cast<uint32_t>(first_bit - 8 * first_byte);
    }
  }

  bool Has(int width) const { return width == width_; }

  HWY_INLINE void Unpack(const std::byte* row, RowValues& values) const {
    const Uint32Tag du;
    const BytesTag d8;
    for (size_t lane = 0; lane < kGroupPositions; lane += kLanes) {
      const auto packed = Blocks(d8, reinterpret_cast<const uint8_t*>(row), begins_ + lane / 4);
      const Uint32s words =
          hn::BitCast(du, hn::TableLookupBytes(packed, hn::Load(d8, bytes_ + 4 * lane)));
      const Uint32s shifted = hn::Shr(words, hn::Load(du, shifts_ + lane));
      hn::StoreU(hn::And(shifted, hn::Set(du, mask_)), du, values.data() + lane);
    }
  }

 private:
  using BytesTag = hn::Repartition<uint8_t, Uint32Tag>;
  static constexpr int kBlockBytes = 16;

  template <class D>
  static HWY_INLINE hn::Vec<D> Blocks(D d, const uint8_t* row, const int* begins) {
    if constexpr (hn::MaxLanes(D()) == kBlockBytes) {
      return hn::LoadU(d, row + begins[0]);
    } else {
      const hn::Half<D> half;
      const int* upper = begins + hn::MaxLanes(D()) / kBlockBytes / 2;
      return hn::Combine(d, Blocks(half, row, upper), Blocks(half, row, begins));
    }
  }

  const int width_;
  const uint32_t mask_;
  int begins_[4];  // of the blocks, in the row
  HWY_ALIGN uint8_t bytes_[4 * kGroupPositions];
  HWY_ALIGN uint32_t shifts_[kGroupPositions];
};

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
