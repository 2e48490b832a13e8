// The CPU backend as a C function, for peers.py: whole sequences, dealt out over threads.
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/decide/simd_backend.h"

namespace {

using sis::Stretch;

// `behavior` and `current` hold [sequences, length, slots] float32, token-major.
std::vector<Stretch> Stretches(int sequences, int length, int slots, const float* behavior,
                               const float* current, const float* behavior_sampled,
                               const float* current_sampled, const uint8_t* ranks,
                               uint8_t* decisions, float* ratios, std::vector<sis::Sums>& sums) {
  const auto size = static_cast<size_t>(length);
  const size_t values = size * slots;
  const auto floats = [values](const float* array, int sequence) {
    return std::span(array + sequence * values, values);
  };
  std::vector<Stretch> stretches;
  for (int i = 0; i < sequences; ++i) {
    const auto part = [&](auto* array) { return std::span(array + i * size, size); };
    Stretch stretch{.sequence_key = static_cast<uint64_t>(i),
                    .first_position = 0,
                    .behavior = {},
                    .current = {},
                    .output = {.decisions = part(reinterpret_cast<sis::Decision*>(decisions)),
                               .modified_ratios = part(ratios)},
                    .sums = &sums[i]};
    stretch.behavior.sampled_log_probs = part(behavior_sampled);
    stretch.behavior.sampled_ranks = {ranks + i * size, size};
    stretch.current.sampled_log_probs = part(current_sampled);
    stretch.behavior.log_probs = floats(behavior, i);
    stretch.current.log_probs = floats(current, i);
    stretches.push_back(stretch);
  }
  return stretches;
}

}  // namespace

// Per sequence, sums gets (accepted, D, D_SIS, expected acceptance): [sequences, 4]. length must be
// a multiple of 16.
extern "C" void sis_peers_evaluate(int threads, int sequences, int length, int slots,
                                   const float* behavior, const float* current,
                                   const float* behavior_sampled, const float* current_sampled,
                                   const uint8_t* ranks, uint8_t* decisions, float* ratios,
                                   double* sums) {
  static const sis::SimdBackend backend;
  std::vector<sis::Sums> totals(sequences);
  const std::vector<Stretch> stretches =
      Stretches(sequences, length, slots, behavior, current, behavior_sampled, current_sampled,
                ranks, decisions, ratios, totals);
  const sis::EvaluateParameters parameters{slots, slots, 0};
  const auto evaluate = [&](int thread) {
    const int first = sequences * thread / threads;
    const int end = sequences * (thread + 1) / threads;
    backend.Evaluate(parameters, std::span(stretches).subspan(first, end - first));
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
