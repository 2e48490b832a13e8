#include "kernels/records/read_groups.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/records/read_groups.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/records/grouped_log_probs.h"
#include "kernels/records/packed_row.h"
#include "kernels/records/record_view.h"
#if HWY_TARGET != HWY_SCALAR
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/simd_rows-inl.h"
#include "kernels/records/simd_unpack-inl.h"
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
