#include "kernels/records/simd_read_groups.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/records/simd_read_groups.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/records/grouped_log_probs.h"
#include "kernels/records/packed_row.h"
#include "kernels/records/record_view.h"
#if HWY_TARGET != HWY_SCALAR
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/simd_rows-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

void ReadLogProbs(LogProbEncoding encoding, std::span<const std::byte> group, size_t slots,
                  float* log_probs) {
  const LogProbReader reader({}, {.rows = group, .encoding = encoding}, slots);
  for (size_t i = 0; i < kGroupPositions * slots; ++i)
    log_probs[i] = reader.At(i / slots, i % slots);
}

bool AllUsed(LogProbEncoding encoding, std::span<const std::byte> group, size_t slots) {
  const LogProbReader reader({}, {.rows = group, .encoding = encoding}, slots);
  size_t lane = 0;
  while (lane < kGroupPositions && reader.At(lane, slots - 1) != kMinusInfinity) ++lane;
  return lane == kGroupPositions;
}

void StoreIds(std::span<const RowValues> ranks, int32_t* ids) {
  for (size_t i = 0; i < kGroupPositions * ranks.size(); ++i) {
    ids[i] = static_cast<int32_t>(ranks[i % ranks.size()][i / ranks.size()]);
  }
}

void Unpack(std::span<const std::byte> from, int width, std::span<RowValues> rows) {
  UnpackRows(from, width, rows);
}

#else

// The last four ranks overlap those before.
template <class Rows>
HWY_INLINE void StoreGroup(const Rows& rows, size_t slots, float* to) {
  for (size_t lane = 0; lane < kGroupPositions; lane += kLanes, to += kLanes * slots) {
    const auto store = [&]<size_t kCount>(size_t rank) HWY_ATTR __attribute__((always_inline)) {
      Floats ranks[kCount];
      ReadRanks(rows, lane, rank, ranks);
      StoreTokenMajor(ranks, slots, to + rank);
    };
    if (slots < kRanksAtOnce) {
      VisitRanks(slots, store);
      continue;
    }
    for (size_t next = 0; next < slots; next += kRanksAtOnce) {
      store.template operator()<kRanksAtOnce>(std::min(next, slots - kRanksAtOnce));
    }
  }
}

template <LogProbEncoding kEncoding>
using Rows = RankMajorRows<kEncoding, RowMemory::kNear>;

void ReadLogProbs(LogProbEncoding encoding, std::span<const std::byte> group, size_t slots,
                  float* log_probs) {
  VisitEncoding(encoding, [&]<LogProbEncoding kEncoding>() HWY_ATTR {
    StoreGroup(Rows<kEncoding>(group.data()), slots, log_probs);
  });
}

bool AllUsed(LogProbEncoding encoding, std::span<const std::byte> group, size_t slots) {
  return VisitEncoding(encoding, [&]<LogProbEncoding kEncoding>() HWY_ATTR {
    const Rows<kEncoding> rows(group.data());
    for (size_t lane = 0; lane < kGroupPositions; lane += kLanes) {
      Floats last[1];
      rows.LoadLast(lane, slots - 1, last);
      if (!hn::AllTrue(FloatTag(), hn::Ne(last[0], Constant(kMinusInfinity)))) return false;
    }
    return true;
  });
}

// Ids are moved as if they were floats.
void StoreIds(std::span<const RowValues> ranks, int32_t* ids) {
  StoreGroup(Rows<LogProbEncoding::kFloat32>(std::as_bytes(ranks).data()), ranks.size(),
             reinterpret_cast<float*>(ids));
}

// For rows of one width. Four values at a time, which are in 16 bytes: each moves to its lane with
// the bytes that it shares with its neighbours, whose bits then go.
class RowUnpacker {
 public:
  // Width is in [kLeast, kMost]: a row has 16 bytes, and a value is in four.
  static constexpr int kLeast = 8;
  static constexpr int kMost = 24;

  explicit RowUnpacker(int width) : mask_((uint32_t{1} << width) - 1) {
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

  const uint32_t mask_;
  int begins_[4];  // of the blocks, in the row
  HWY_ALIGN uint8_t bytes_[4 * kGroupPositions];
  HWY_ALIGN uint32_t shifts_[kGroupPositions];
};

// Made once: it takes as long as some rows do.
const RowUnpacker& UnpackerOf(int bits) {
  static const auto kUnpackers = []<int... kAbove>(std::integer_sequence<int, kAbove...>) {
    return std::array{RowUnpacker(RowUnpacker::kLeast + kAbove)...};
  }
  (std::make_integer_sequence<int, RowUnpacker::kMost - RowUnpacker::kLeast + 1>());
  return kUnpackers[bits - RowUnpacker::kLeast];
}

void Unpack(std::span<const std::byte> from, int width, std::span<RowValues> rows) {
  if (width < RowUnpacker::kLeast || width > RowUnpacker::kMost) {
    return UnpackRows(from, width, rows);
  }
  const RowUnpacker& unpacker = UnpackerOf(width);
  const std::byte* row = from.data();
  for (RowValues& values : rows) {
    unpacker.Unpack(row, values);
    row += PackedRowBytes(width);
  }
}

#endif  // HWY_TARGET

void ReadIds(std::span<const std::byte> rows, int bits, size_t slots, int32_t* ids) {
  HWY_ALIGN std::array<RowValues, kMaxTopK> memory;
  const std::span<RowValues> ranks = std::span(memory).first(slots);
  Unpack(rows, bits, ranks);
  StoreIds(ranks, ids);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(ReadLogProbs);
HWY_EXPORT(AllUsed);
HWY_EXPORT(ReadIds);
HWY_EXPORT(Unpack);

}  // namespace

void ReadLogProbGroup(LogProbEncoding encoding, std::span<const std::byte> group,
                      std::span<float> log_probs) {
  HWY_DYNAMIC_DISPATCH(ReadLogProbs)
  (encoding, group, log_probs.size() / kGroupPositions, log_probs.data());
}

bool UsesEverySlot(LogProbEncoding encoding, std::span<const std::byte> group, size_t slots) {
  return HWY_DYNAMIC_DISPATCH(AllUsed)(encoding, group, slots);
}

void ReadIdGroup(std::span<const std::byte> rows, int bits, std::span<int32_t> ids) {
  HWY_DYNAMIC_DISPATCH(ReadIds)(rows, bits, ids.size() / kGroupPositions, ids.data());
}

void UnpackRowsOnVectors(std::span<const std::byte> from, int width, std::span<RowValues> rows) {
  HWY_DYNAMIC_DISPATCH(Unpack)(from, width, rows);
}

}  // namespace sis
#endif
