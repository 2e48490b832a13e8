#include "kernels/records/simd_ids.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/records/simd_ids.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/records/encoding.h"
#include "kernels/records/packed_row.h"
#if HWY_TARGET != HWY_SCALAR
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/simd_rows-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

// The caller does it one by one.
bool PackIds(const RecordView&, size_t, const uint16_t*, int, std::span<std::byte>) {
  return false;
}

#else

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

void PackOneByOne(const RowVectors& values, int width, std::byte* row) {
  const Uint32Tag du;
  RowValues one_by_one;
  for (size_t lane = 0; lane < kGroupPositions; lane += kLanes) {
    hn::StoreU(hn::BitCast(du, values[lane / kLanes]), du, one_by_one.data() + lane);
  }
  PackRow(one_by_one, width, {row, PackedRowBytes(width)});
}

// Packs rows, in ascending order, into memory that ends at `end`.
class RowWriter {
 public:
  RowWriter(int width, const std::byte* end)
      : width_(width),
        packer_(std::clamp(width, RowPacker::kLeast, RowPacker::kMost)),
        end_(end),
        written_bytes_(width == packer_.width() ? packer_.WrittenBytes() : SIZE_MAX) {}

  HWY_INLINE void Write(const RowVectors& values, std::byte* row) const {
    if (static_cast<size_t>(end_ - row) >= written_bytes_) {
      packer_.Pack(values, row);
    } else {
      PackOneByOne(values, width_, row);
    }
  }

 private:
  const int width_;
  const RowPacker packer_;
  const std::byte* const end_;
  const size_t written_bytes_;  // by the packer, if it can pack this width
};

// The ids [16, slots] of one group, rank by rank.
HWY_INLINE void WriteRanks(const int32_t* ids, size_t slots, const uint16_t* used_slots,
                           const RowWriter& writer, size_t row_bytes, std::byte* to) {
  const Int32Tag di;
  const TokenMajorRows<int32_t> rows(ids, slots);
  RowVectors used;
  for (size_t lane = 0; lane < kGroupPositions; lane += kLanes) {
    const auto halves = hn::LoadU(hn::Rebind<uint16_t, Int32Tag>(), used_slots + lane);
    used[lane / kLanes] = hn::PromoteTo(di, halves);
  }
  VisitRanks(
      slots, [&]<size_t kCount>(size_t rank) HWY_ATTR __attribute__((always_inline)) {
        RowVectors of_rank[kCount];
        for (size_t part = 0; part < kGroupPositions / kLanes; ++part) {
          Int32s ids[kCount];
          ReadRanks(rows, part * kLanes, rank, ids);
          for (size_t i = 0; i < kCount; ++i) {
            const auto in_use = hn::Gt(used[part], hn::Set(di, static_cast<int32_t>(rank + i)));
            of_rank[i][part] = hn::IfThenElseZero(in_use, ids[i]);
          }
        }
        for (size_t i = 0; i < kCount; ++i) writer.Write(of_rank[i], to + (rank + i) * row_bytes);
      });
}

bool PackIds(const RecordView& records, size_t slots, const uint16_t* used_slots, int bits,
             std::span<std::byte> to) {
  const size_t row_bytes = PackedRowBytes(bits);
  const size_t positions = records.sampled_ids.size();
  const RowWriter writer(bits, to.data() + to.size());
  std::byte* group = to.data();
  for (size_t first = 0; first < positions; first += kGroupPositions) {
    RowVectors sampled;
    for (size_t lane = 0; lane < kGroupPositions; lane += kLanes) {
      sampled[lane / kLanes] = hn::LoadU(Int32Tag(), records.sampled_ids.data() + first + lane);
    }
    writer.Write(sampled, group);
    WriteRanks(records.ids.data() + first * slots, slots, used_slots + first, writer, row_bytes,
               group + row_bytes);
    group += (1 + slots) * row_bytes;
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

HWY_EXPORT(PackIds);

}  // namespace

bool PackIdsOnVectors(const RecordView& records, int slots, std::span<const uint16_t> used_slots,
                      int bits, std::span<std::byte> to) {
  return HWY_DYNAMIC_DISPATCH(PackIds)(records, static_cast<size_t>(slots), used_slots.data(), bits,
                                       to);
}

}  // namespace sis
#endif
