// The CPU backend as a C function, for peers.py: whole sequences, dealt out over threads.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/decide/cpu_backend.h"

namespace {

using sis::Segment;

// `behavior` and `current` hold [sequences, length, slots] float32, token-major, or the same in
// groups of 16 float16.
std::vector<Segment> Segments(int sequences, int length, int slots, bool float16_groups,
                              const void* behavior, const void* current,
                              const float* behavior_sampled, const float* current_sampled,
                              const uint8_t* ranks, uint8_t* decisions, float* ratios,
                              std::vector<sis::Sums>& sums) {
  const auto size = static_cast<size_t>(length);
  const size_t values = size * slots;
  const auto floats = [values](const void* array, int sequence) {
    return std::span(static_cast<const float*>(array) + sequence * values, values);
  };
  const auto halves = [values](const void* array, int sequence) {
    return sis::GroupedLogProbs{
        std::as_bytes(std::span(static_cast<const uint16_t*>(array) + sequence * values, values)),
        sis::LogProbEncoding::kFloat16, 0};
  };
  std::vector<Segment> segments;
  for (int i = 0; i < sequences; ++i) {
    const auto part = [&](auto* array) { return std::span(array + i * size, size); };
    Segment segment{.sequence_key = static_cast<uint64_t>(i),
                    .first_position = 0,
                    .behavior = {},
                    .current = {},
                    .output = {.decisions = part(reinterpret_cast<sis::Decision*>(decisions)),
                               .modified_ratios = part(ratios)},
                    .sums = &sums[i]};
    segment.behavior.sampled_log_probs = part(behavior_sampled);
    segment.behavior.sampled_ranks = part(ranks);
    segment.current.sampled_log_probs = part(current_sampled);
    if (float16_groups) {
      segment.behavior.grouped_log_probs = halves(behavior, i);
      segment.current.grouped_log_probs = halves(current, i);
    } else {
      segment.behavior.log_probs = floats(behavior, i);
      segment.current.log_probs = floats(current, i);
    }
    segments.push_back(segment);
  }
  return segments;
}

}  // namespace

// Per sequence, sums gets (accepted, D, D_SIS, expected acceptance): [sequences, 4]. length must be
// a multiple of 16.
extern "C" void sis_peers_evaluate(int threads, int sequences, int length, int slots,
                                   int float16_groups, const void* behavior, const void* current,
                                   const float* behavior_sampled, const float* current_sampled,
                                   const uint8_t* ranks, uint8_t* decisions, float* ratios,
                                   double* sums) {
  static const auto backend = sis::CpuBackend();
  std::vector<sis::Sums> totals(sequences);
  const std::vector<Segment> segments =
      Segments(sequences, length, slots, float16_groups != 0, behavior, current, behavior_sampled,
               current_sampled, ranks, decisions, ratios, totals);
  const sis::EvaluateParameters parameters{slots, slots, 0};
  const auto evaluate = [&](int thread) {
    const int first = sequences * thread / threads;
    const int end = sequences * (thread + 1) / threads;
    backend->Evaluate(parameters, std::span(segments).subspan(first, end - first));
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(evaluate, thread);
  evaluate(0);
  for (std::thread& other : others) other.join();
  for (int i = 0; i < sequences; ++i) {
    sums[4 * i] = static_cast<double>(totals[i].accepted);
    sums[4 * i + 1] = sis::FromFixed(totals[i].d);
    sums[4 * i + 2] = sis::FromFixed(totals[i].d_sis);
    sums[4 * i + 3] = sis::FromFixed(totals[i].expected_acceptance);
  }
}
