// What the threads of one block do, in three steps with a barrier after each of the first two. Host
// and device share all of it, so that tests on a CPU cover everything but the launch: a loop over
// blocks, steps and threads is a kernel.
//
// One thread decides one position, so that the lanes of a group are read side by side. Philox gives
// four uniforms at once and a thread needs one: the first threads compute them for the whole block.
// Sums are integers: each thread leaves its addends in shared memory, few threads add them up, and
// one atomic addition per tile and field goes to memory.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/evaluate/batch_view.h"
#include "kernels/cuda/evaluate/slot_readers.h"
#include "kernels/cuda/evaluate/tuning.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/host_device.h"
#include "kernels/numerics/philox.h"

namespace sis::cuda {

inline constexpr int kTilesPerBlock = kThreadsPerBlock / kTilePositions;
static_assert(kThreadsPerBlock % kTilePositions == 0);

// Blocks of four uniforms that the positions of a tile can touch.
inline constexpr int kQuadsPerTile = kTilePositions / 4 + 1;

// Shared memory of a block.
struct ThreadBlockScratch {
  uint32_t uniforms[kTilesPerBlock][4 * kQuadsPerTile];
  // One element more than positions: threads that add up neighbouring rows then read from different
  // banks.
  int64_t addends[kTilesPerBlock][kSumFields][kTilePositions + 1];
};

constexpr uint32_t ThreadBlockCount(uint32_t tiles) {
  return (tiles + kTilesPerBlock - 1) / kTilesPerBlock;
}

// The position of a tile's first thread; wraps around below 0.
SIS_HOST_DEVICE inline uint32_t TilePosition(const StagedStretch& stretch, const StagedTile& tile) {
  return stretch.first_position + static_cast<uint32_t>(tile.first);
}

// Step 1: the uniforms.
SIS_HOST_DEVICE inline void PrepareUniforms(const BatchView& batch, uint32_t block, int thread,
                                            ThreadBlockScratch& scratch) {
  for (int i = thread; i < kTilesPerBlock * kQuadsPerTile; i += kThreadsPerBlock) {
    const int tile = i / kQuadsPerTile;
    const int quad = i % kQuadsPerTile;
    const uint32_t number = block * kTilesPerBlock + static_cast<uint32_t>(tile);
    if (number >= batch.tile_count) return;
    const StagedStretch& stretch = batch.stretches[batch.tiles[number].stretch];
    // Positions wrap around where a tile begins before the first one.
    const uint32_t first = TilePosition(stretch, batch.tiles[number]);
    const PhiloxBlock uniforms = AcceptanceUniforms(
        stretch.sequence_key, (first + 4 * static_cast<uint32_t>(quad)) / 4, batch.draw);
    for (int word = 0; word < 4; ++word) {
      scratch.uniforms[tile][4 * quad + word] = uniforms.word[word];
    }
  }
}

// What the slots of a position come down to.
struct SlotSums {
  SlotsResult slots;
  float total_variation;
};

template <bool kTotalVariation>
struct SlotAccumulator {
  EnvelopeAccumulator envelope;
  TotalVariationAccumulator total_variation;

  // Slots [first, end), the next of places. Asks for several before using any, since memory answers
  // late.
  template <class Places, class Behavior, class Current>
  SIS_HOST_DEVICE void Add(Places& places, const Behavior& behavior, const Current& current,
                           int first, int end) {
    for (int slot = first; slot < end; slot += kSlotsAhead) {
      float behavior_log_probs[kSlotsAhead];
      float current_log_probs[kSlotsAhead];
      for (int i = 0; i < kSlotsAhead; ++i) {
        const bool there = slot + i < end;
        const Place place = there ? places.Next() : Place{};
        behavior_log_probs[i] = there ? behavior.At(place.recorded) : kMinusInfinity;
        current_log_probs[i] = there ? current.At(place.current) : kMinusInfinity;
      }
      for (int i = 0; i < kSlotsAhead; ++i) {
        envelope.Add(behavior_log_probs[i], current_log_probs[i]);
        if (kTotalVariation) total_variation.Add(behavior_log_probs[i], current_log_probs[i]);
      }
    }
  }
};

template <bool kTotalVariation, class Places, class Behavior, class Current>
SIS_HOST_DEVICE SlotSums AccumulateSlots(Places places, const Behavior& behavior,
                                         const Current& current, int slots, int top_k) {
  SlotAccumulator<kTotalVariation> accumulator;
  accumulator.Add(places, behavior, current, 0, top_k);
  const Envelope envelope = accumulator.envelope.Finish();
  const float total_variation = accumulator.total_variation.Finish();
  // The rest only has to be valid.
  accumulator.Add(places, behavior, current, top_k, slots);
  return {{envelope, accumulator.envelope.valid()}, total_variation};
}

// Slots from `ranks` on are unused. `first`: which of the stretch's current values is at place 0.
template <bool kTotalVariation, class Places, class Behavior>
SIS_HOST_DEVICE SlotSums AccumulateWith(const Places& places, const Behavior& behavior, int ranks,
                                        const BatchView& batch, const StagedStretch& stretch,
                                        size_t first) {
  const int top_k = batch.top_k < ranks ? batch.top_k : ranks;
  const ValueReader<LogProbEncoding::kFloat32> current(batch.input + stretch.current +
                                                       first * sizeof(float));
  return AccumulateSlots<kTotalVariation>(places, behavior, current, ranks, top_k);
}

template <typename T>
SIS_HOST_DEVICE T Load(const std::byte* memory, uint64_t offset, size_t index) {
  return reinterpret_cast<const T*>(memory + offset)[index];
}

template <typename T>
SIS_HOST_DEVICE void Store(const BatchView& batch, uint64_t offset, size_t index, T value) {
  if (offset != kAbsent) reinterpret_cast<T*>(batch.output + offset)[index] = value;
}

template <bool kTotalVariation>
SIS_HOST_DEVICE SlotSums RaggedSlotsAt(const BatchView& batch, const StagedStretch& stretch,
                                       size_t lane) {
  const std::byte* input = batch.input;
  const size_t group = lane / kGroupPositions;
  const auto first = Load<uint32_t>(input, stretch.begins, 0);
  const RaggedPlaces places(
      reinterpret_cast<const uint64_t*>(input + stretch.counts) + group * (kGroupPositions / 4),
      static_cast<int>(lane % kGroupPositions),
      Load<uint32_t>(input, stretch.begins, group) - first + first % 2);
  const int count = Load<uint16_t>(input, stretch.counts, lane);
  // A page of empty sets has no codes.
  const std::byte* codes =
      stretch.behavior.offset == kAbsent ? nullptr : input + stretch.behavior.offset;
  return VisitEncoding(stretch.behavior.encoding, [&]<LogProbEncoding kEncoding>() {
    const uint32_t multiplier =
        LeadingRows(kEncoding) > 0 ? CodeAt<kEncoding>(input + stretch.multipliers, lane) : 1;
    return AccumulateWith<kTotalVariation>(places, ValueReader<kEncoding>(codes, multiplier), count,
                                           batch, stretch, 0);
  });
}

// Of position `index` of the stretch.
template <bool kTotalVariation>
SIS_HOST_DEVICE SlotSums SlotsAt(const BatchView& batch, const StagedStretch& stretch,
                                 size_t index) {
  const size_t lane = stretch.behavior.first_lane + index;
  const int slots = batch.slots;
  const size_t first = index * static_cast<size_t>(slots);
  // REDUCED comes without rows.
  const bool has_rows = stretch.behavior.offset != kAbsent;
  const std::byte* rows =
      has_rows ? RecordedRows(batch, stretch) + stretch.behavior.offset : nullptr;
  switch (stretch.behavior.layout) {
    case RowLayout::kTokenMajor:
      return AccumulateWith<kTotalVariation>(
          DensePlaces(), ValueReader<LogProbEncoding::kFloat32>(rows + first * sizeof(float)),
          slots, batch, stretch, first);
    case RowLayout::kGrouped:
      return VisitEncoding(stretch.behavior.encoding, [&]<LogProbEncoding kEncoding>() {
        return AccumulateWith<kTotalVariation>(DensePlaces(),
                                               GroupedReader<kEncoding>(rows, lane, slots), slots,
                                               batch, stretch, first);
      });
    case RowLayout::kRagged:
      return RaggedSlotsAt<kTotalVariation>(batch, stretch, lane);
    case RowLayout::kNone:
      break;
  }
  return {SlotsOfReduced(Load<float>(batch.input, stretch.log_envelopes, index),
                         Load<float>(batch.input, stretch.covered_masses, index)),
          0.0f};
}

// A byte that is no slot's is not below any K that has bytes.
SIS_HOST_DEVICE inline int RankAt(const std::byte* recorded, const StagedStretch& stretch,
                                  size_t index) {
  return stretch.byte_ranks ? Load<uint8_t>(recorded, stretch.sampled_ranks, index)
                            : Load<uint16_t>(recorded, stretch.sampled_ranks, index);
}

// Writes the results of position `index`, and returns what it adds to the sums.
template <bool kTotalVariation>
SIS_HOST_DEVICE Sums EvaluatePosition(const BatchView& batch, const StagedStretch& stretch,
                                      size_t index, uint32_t uniform) {
  Sums sums;
  const auto [slots, total_variation] = SlotsAt<kTotalVariation>(batch, stretch, index);
  const float current_sampled = Load<float>(batch.input, stretch.current_sampled_log_probs, index);
  if (!IsValid(current_sampled, slots)) {
    sums.invalid = 1;
    return sums;
  }
  const std::byte* recorded = RecordedRows(batch, stretch);
  const PositionResult result =
      Decide(Load<float>(recorded, stretch.behavior_sampled_log_probs, index), current_sampled,
             slots.envelope, RankAt(recorded, stretch, index) < batch.top_k, uniform);
  Store(batch, stretch.decisions, index, result.decision);
  Store(batch, stretch.acceptance_probabilities, index, result.acceptance_probability);
  Store(batch, stretch.log_modified_ratios, index, result.log_modified_ratio());
  if (stretch.modified_ratios != kAbsent) {
    Store(batch, stretch.modified_ratios, index, result.modified_ratio());
  }
  Store(batch, stretch.log_ratios, index, result.log_ratio);
  Store(batch, stretch.output_log_envelopes, index, slots.envelope.log_envelope);
  Store(batch, stretch.output_covered_masses, index, slots.envelope.covered_mass);
  AddPosition(result, slots.envelope, sums);
  if (kTotalVariation) sums.total_variation = Fixed(total_variation);
  return sums;
}

// Step 2: the thread's position, if it has one. kTotalVariation is that of the batch.
template <bool kTotalVariation>
SIS_HOST_DEVICE void EvaluateThread(const BatchView& batch, uint32_t block, int thread,
                                    ThreadBlockScratch& scratch) {
  const int tile = thread / kTilePositions;
  const int lane = thread % kTilePositions;
  const uint32_t number = block * kTilesPerBlock + static_cast<uint32_t>(tile);
  if (number >= batch.tile_count) return;
  const StagedStretch& stretch = batch.stretches[batch.tiles[number].stretch];
  const int32_t index = batch.tiles[number].first + lane;
  Sums sums;
  if (index >= 0 && static_cast<uint32_t>(index) < stretch.count) {
    const uint32_t quad_lane = TilePosition(stretch, batch.tiles[number]) % 4;
    sums = EvaluatePosition<kTotalVariation>(
        batch, stretch, static_cast<size_t>(index),
        scratch.uniforms[tile][quad_lane + static_cast<uint32_t>(lane)]);
  }
  const auto fields = std::bit_cast<SumFields>(sums);
  for (int field = 0; field < kSumFields; ++field) {
    scratch.addends[tile][field][lane] = fields.field[field];
  }
}

// Step 3: the sums of each tile go to those of the batch by add_to(int64_t&, int64_t), which must
// be atomic where blocks run at the same time.
template <class AddTo>
SIS_HOST_DEVICE void AddSums(const BatchView& batch, uint32_t block, int thread,
                             const ThreadBlockScratch& scratch, const AddTo& add_to) {
  for (int i = thread; i < kTilesPerBlock * kSumFields; i += kThreadsPerBlock) {
    const int tile = i / kSumFields;
    const int field = i % kSumFields;
    const uint32_t number = block * kTilesPerBlock + static_cast<uint32_t>(tile);
    if (number >= batch.tile_count) return;
    int64_t sum = 0;
    for (int lane = 0; lane < kTilePositions; ++lane) sum += scratch.addends[tile][field][lane];
    const uint32_t sums = batch.stretches[batch.tiles[number].stretch].sums;
    if (sum != 0) add_to(batch.sums[sums].field[field], sum);
  }
}

}  // namespace sis::cuda
