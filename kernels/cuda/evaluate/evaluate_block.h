// The work of the threads of one CUDA block, in three steps with a barrier after each of the first
// two. Host and device share all of it, so tests on a CPU cover everything except the launch: a
// kernel is a loop over blocks, steps and threads.
//
// One thread decides one position. Philox gives four uniforms at once and a thread needs one, so
// the first threads compute them for the whole block. A thread finds the first slot of its position
// by adding the counts of its tile, which all threads write to shared memory. Sums are integers:
// each thread writes its addends to shared memory, a few threads add them, and one atomic addition
// per tile and field goes to memory.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/evaluate/batch_view.h"
#include "kernels/cuda/evaluate/tuning.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/host_device.h"
#include "kernels/numerics/philox.h"

namespace sis::cuda {

inline constexpr int kTilesPerBlock = kThreadsPerBlock / kTilePositions;
static_assert(kThreadsPerBlock % kTilePositions == 0);

// Maximum number of blocks of four uniforms that the positions of a tile use.
inline constexpr int kQuadsPerTile = kTilePositions / 4 + 1;

// Shared memory of a block.
struct ThreadBlockScratch {
  uint32_t uniforms[kTilesPerBlock][4 * kQuadsPerTile];
  uint32_t counts[kTilesPerBlock][kTilePositions / 4];  // four in a word
  // One element more than positions, so that threads that add neighbouring rows read from different
  // banks.
  int64_t addends[kTilesPerBlock][kSumFields][kTilePositions + 1];
};

constexpr uint32_t ThreadBlockCount(uint32_t tiles) {
  return (tiles + kTilesPerBlock - 1) / kTilesPerBlock;
}

template <typename T>
SIS_HOST_DEVICE T Load(const std::byte* memory, uint64_t offset, size_t index) {
  return reinterpret_cast<const T*>(memory + offset)[index];
}

template <typename T>
SIS_HOST_DEVICE void Store(const BatchView& batch, uint64_t offset, size_t index, T value) {
  if (offset != kAbsent) reinterpret_cast<T*>(batch.output + offset)[index] = value;
}

// Step 1: computes the uniforms and copies the counts.
SIS_HOST_DEVICE inline void Prepare(const BatchView& batch, uint32_t block, int thread,
                                    ThreadBlockScratch& scratch) {
  for (int i = thread; i < kTilesPerBlock * kQuadsPerTile; i += kThreadsPerBlock) {
    const int tile = i / kQuadsPerTile;
    const int quad = i % kQuadsPerTile;
    const uint32_t number = block * kTilesPerBlock + static_cast<uint32_t>(tile);
    if (number >= batch.tile_count) break;
    const StagedTile& staged = batch.tiles[number];
    const StagedRange& range = batch.ranges[staged.range];
    const PhiloxBlock uniforms = AcceptanceUniforms(
        range.sequence_key,
        (range.first_position + staged.first + 4 * static_cast<uint32_t>(quad)) / 4, batch.draw);
    for (int word = 0; word < 4; ++word) {
      scratch.uniforms[tile][4 * quad + word] = uniforms.word[word];
    }
  }
  const int tile = thread / kTilePositions;
  const int lane = thread % kTilePositions;
  const uint32_t number = block * kTilesPerBlock + static_cast<uint32_t>(tile);
  if (number >= batch.tile_count) return;
  const StagedTile& staged = batch.tiles[number];
  const StagedRange& range = batch.ranges[staged.range];
  const uint32_t index = staged.first + static_cast<uint32_t>(lane);
  if (index >= range.count) return;
  reinterpret_cast<uint8_t*>(scratch.counts[tile])[lane] =
      Load<uint8_t>(RecordedBytes(batch, range), range.counts, index);
}

// Returns the number of slots of the positions before `lane` in its tile.
SIS_HOST_DEVICE inline uint32_t SlotsBefore(const uint32_t* counts, int lane) {
  uint32_t halves = 0;  // two sums, each below 2^16
  for (int word = 0; 4 * word < lane; ++word) {
    const int lanes = lane - 4 * word;
    const uint32_t before = lanes < 4 ? counts[word] & ((1u << 8 * lanes) - 1) : counts[word];
    halves += (before & 0x00ff00ff) + (before >> 8 & 0x00ff00ff);
  }
  return (halves & 0xffff) + (halves >> 16);
}

// Adds slots [first, end). Loads several before using the first, to hide the memory's latency.
template <class Behavior>
SIS_HOST_DEVICE void AddSlots(const Behavior& behavior, const float* current, int first, int end,
                              EnvelopeAccumulator& accumulator) {
  for (int slot = first; slot < end; slot += kSlotsAhead) {
    float behavior_log_probs[kSlotsAhead];
    float current_log_probs[kSlotsAhead];
    for (int i = 0; i < kSlotsAhead; ++i) {
      const bool there = slot + i < end;
      behavior_log_probs[i] = there ? behavior(slot + i) : kMinusInfinity;
      current_log_probs[i] = there ? current[slot + i] : kMinusInfinity;
    }
    for (int i = 0; i < kSlotsAhead; ++i) {
      accumulator.Add(behavior_log_probs[i], current_log_probs[i]);
    }
  }
}

template <class Behavior>
SIS_HOST_DEVICE SlotsResult AccumulateSlots(const Behavior& behavior, const float* current,
                                            int count, int top_k) {
  const int used = top_k < count ? top_k : count;
  EnvelopeAccumulator accumulator;
  AddSlots(behavior, current, 0, used, accumulator);
  const Envelope envelope = accumulator.Finish();
  // Slots beyond k must only be valid.
  AddSlots(behavior, current, used, count, accumulator);
  return {envelope, accumulator.valid()};
}

// Returns the results over the slots of position `index` of the range, which begin at `first_slot`.
SIS_HOST_DEVICE inline SlotsResult SlotsAt(const BatchView& batch, const StagedRange& range,
                                           size_t index, uint32_t first_slot) {
  const std::byte* recorded = RecordedBytes(batch, range);
  const std::byte* log_probs = recorded + range.log_probs;
  const float* current =
      reinterpret_cast<const float*>(batch.input + range.current_log_probs) + first_slot;
  const int count = Load<uint8_t>(recorded, range.counts, index);
  if (range.encoding == BlockEncoding::kFixed16) {
    const uint16_t* codes = reinterpret_cast<const uint16_t*>(log_probs) + first_slot;
    const uint32_t multiplier = Load<uint8_t>(recorded, range.multipliers, index);
    return AccumulateSlots([=](int slot) { return Fixed16(codes[slot], multiplier); }, current,
                           count, batch.top_k);
  }
  const float* values = reinterpret_cast<const float*>(log_probs) + first_slot;
  return AccumulateSlots([=](int slot) { return values[slot]; }, current, count, batch.top_k);
}

// Writes the results of position `index`, and returns its addends of the sums.
SIS_HOST_DEVICE inline Sums EvaluatePosition(const BatchView& batch, const StagedRange& range,
                                             size_t index, uint32_t first_slot, uint32_t uniform) {
  Sums sums;
  const SlotsResult slots = SlotsAt(batch, range, index, first_slot);
  const float current_sampled = Load<float>(batch.input, range.current_sampled_log_probs, index);
  if (!IsValid(current_sampled, slots)) {
    sums.invalid = 1;
    return sums;
  }
  const std::byte* recorded = RecordedBytes(batch, range);
  const PositionResult result =
      Decide(Load<float>(recorded, range.sampled_log_probs, index), current_sampled, slots.envelope,
             Load<uint8_t>(recorded, range.ranks, index) < batch.top_k, uniform);
  Store(batch, range.decisions, index, result.decision);
  Store(batch, range.acceptance_probabilities, index, result.acceptance_probability);
  Store(batch, range.log_modified_ratios, index, result.log_modified_ratio());
  if (range.modified_ratios != kAbsent) {
    Store(batch, range.modified_ratios, index, result.modified_ratio());
  }
  Store(batch, range.log_ratios, index, result.log_ratio);
  Store(batch, range.output_log_envelopes, index, slots.envelope.log_envelope);
  Store(batch, range.output_covered_masses, index, slots.envelope.covered_mass);
  AddPosition(result, slots.envelope, sums);
  return sums;
}

// Step 2: evaluates the thread's position, if it has one.
SIS_HOST_DEVICE inline void EvaluateThread(const BatchView& batch, uint32_t block, int thread,
                                           ThreadBlockScratch& scratch) {
  const int tile = thread / kTilePositions;
  const int lane = thread % kTilePositions;
  const uint32_t number = block * kTilesPerBlock + static_cast<uint32_t>(tile);
  if (number >= batch.tile_count) return;
  const StagedTile& staged = batch.tiles[number];
  const StagedRange& range = batch.ranges[staged.range];
  const uint32_t index = staged.first + static_cast<uint32_t>(lane);
  Sums sums;
  if (index < range.count) {
    const uint32_t quad_lane = (range.first_position + staged.first) % 4;
    sums = EvaluatePosition(batch, range, index,
                            staged.first_slot + SlotsBefore(scratch.counts[tile], lane),
                            scratch.uniforms[tile][quad_lane + static_cast<uint32_t>(lane)]);
  }
  const auto fields = std::bit_cast<SumFields>(sums);
  for (int field = 0; field < kSumFields; ++field) {
    scratch.addends[tile][field][lane] = fields.field[field];
  }
}

// Step 3: adds the sums of each tile to those of the batch by add_to(int64_t&, int64_t), which must
// be atomic if blocks run concurrently.
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
    const uint32_t sums = batch.ranges[batch.tiles[number].range].sums;
    if (sum != 0) add_to(batch.sums[sums].field[field], sum);
  }
}

}  // namespace sis::cuda
