// The CPU backend as C functions, for peers.py: whole sequences, dealt out over threads.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "kernels/block/pack.h"
#include "kernels/decide/simd_backend.h"

namespace {

using sis::BackendRange;

constexpr size_t kBlockPositions = 512;

struct Batch {
  std::vector<std::vector<std::byte>> blocks;
  std::vector<sis::Sums> sums;       // of each sequence
  std::vector<BackendRange> ranges;  // those of a sequence follow each other
  int slots;
};

// The records of `count` positions from `first` on as a block of float32; slot i has id i.
std::vector<std::byte> Pack(size_t first, size_t count, int slots, const float* behavior,
                            const float* behavior_sampled, const uint8_t* ranks) {
  std::vector<int32_t> ids(count * slots);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % slots);
  const std::vector<int32_t> sampled_ids(ranks + first, ranks + first + count);
  std::vector<std::byte> block = *sis::PackBlock(
      {.sampled_ids = sampled_ids,
       .sampled_log_probs = {behavior_sampled + first, count},
       .ids = ids,
       .log_probs = {behavior + first * slots, count * slots}},
      {.encoding = sis::BlockEncoding::kFloat32, .slots = slots, .vocabulary_size = 1 << 16});
  block.resize(block.size() + sis::kBlockSlack);
  return block;
}

}  // namespace

// `behavior` and `current` hold [sequences, length, slots] float32, token-major; a rank of 255 is
// none of the slots. The other arrays are [sequences, length]. Those but `behavior` must outlive
// the result, which is never freed.
extern "C" void* sis_peers_open(int sequences, int length, int slots, const float* behavior,
                                const float* current, const float* behavior_sampled,
                                const float* current_sampled, const uint8_t* ranks,
                                uint8_t* decisions, float* ratios) {
  auto* batch = new Batch{.sums = std::vector<sis::Sums>(sequences), .slots = slots};
  for (int sequence = 0; sequence < sequences; ++sequence) {
    const auto size = static_cast<size_t>(length);
    for (size_t index = 0; index < size; index += kBlockPositions) {
      const size_t first = sequence * size + index;
      const size_t count = std::min(kBlockPositions, size - index);
      batch->blocks.push_back(Pack(first, count, slots, behavior, behavior_sampled, ranks));
      const std::vector<std::byte>& block = batch->blocks.back();
      const sis::BlockView view =
          *sis::OpenBlock(std::span(block).first(block.size() - sis::kBlockSlack), false);
      const auto part = [&](auto* array, size_t width = 1) {
        return std::span(array + first * width, count * width);
      };
      batch->ranges.push_back(
          {.sequence_key = static_cast<uint64_t>(sequence),
           .first_position = static_cast<uint32_t>(index),
           .behavior = sis::BlockRange(view, 0, static_cast<uint32_t>(count)),
           .current = {.sampled_log_probs = part(current_sampled),
                       .log_probs = part(current, slots)},
           .output = {.decisions = part(reinterpret_cast<sis::Decision*>(decisions)),
                      .modified_ratios = part(ratios)},
           .sums = &batch->sums[sequence]});
    }
  }
  return batch;
}

// Per sequence, sums gets (accepted, D, D_SIS, expected acceptance): [sequences, 4].
extern "C" void sis_peers_evaluate(void* opened, int threads, double* sums) {
  static const sis::SimdBackend backend;
  Batch& batch = *static_cast<Batch*>(opened);
  const size_t sequences = batch.sums.size();
  const size_t ranges = batch.ranges.size() / sequences;  // of a sequence
  batch.sums.assign(sequences, {});
  const sis::EvaluateParameters parameters{.top_k = batch.slots, .draw = 0};
  const auto evaluate = [&](int thread) {
    const size_t first = sequences * thread / threads;
    const size_t end = sequences * (thread + 1) / threads;
    backend.Evaluate(parameters, std::span<const BackendRange>(batch.ranges)
                                     .subspan(first * ranges, (end - first) * ranges));
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(evaluate, thread);
  evaluate(0);
  for (std::thread& other : others) other.join();
  for (size_t i = 0; i < sequences; ++i) {
    const sis::Sums& total = batch.sums[i];
    sums[4 * i] = static_cast<double>(total.accepted);
    sums[4 * i + 1] = sis::FromFixed(total.d);
    sums[4 * i + 2] = sis::FromFixed(total.d_sis);
    sums[4 * i + 3] = sis::FromFixed(total.expected_acceptance);
  }
}
