// Nanoseconds of one core for the decision of a position, by K, encoding and backend.
//
//     kernels [repetitions] [sequences]
//
// Every repetition measures each case in turn, so that ratios are between neighbours in time;
// printed are median, least and most. The default of sequences takes more memory than caches have.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "kernels/block/pack.h"
#include "kernels/decide/simd_backend.h"
#include "kernels/decide/statistics.h"
#include "kernels/testing/scalar_backend.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

constexpr uint32_t kPositions = 512;  // of a sequence, all in one block
constexpr int kVocabulary = 1 << 16;

// This thread's processor time. Other processes affect it less than they affect the clock.
double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Sequences with what evaluating them takes.
struct Workload {
  Workload(int slots, BlockEncoding encoding, int sequences) : parts(sequences) {
    RecordGenerator generator(slots, kVocabulary, 1);
    for (Part& part : parts) {
      const Records records = generator.NextRecords(kPositions);
      part.block = *PackBlock(
          records.View(), {.encoding = encoding, .slots = slots, .vocabulary_size = kVocabulary});
      const size_t bytes = part.block.size();
      part.block.resize(bytes + kBlockSlack);
      part.current = generator.NextCurrent(records);
      std::erase_if(part.current.log_probs, [](float value) { return value != value; });
      for (auto* values : {&part.probabilities, &part.ratios, &part.envelopes, &part.masses}) {
        values->resize(kPositions);
      }
      part.decisions.resize(kPositions);
      part.range.emplace(BackendRange{
          .sequence_key = static_cast<uint64_t>(&part - parts.data()),
          .first_position = 0,
          .behavior =
              BlockRange(*OpenBlock(std::span(part.block).first(bytes), false), 0, kPositions),
          .current = {.sampled_log_probs = part.current.sampled_log_probs,
                      .log_probs = part.current.log_probs},
          .output = {.decisions = part.decisions},
          .sums = &sums});
    }
  }

  struct Part {
    std::vector<std::byte> block;
    CurrentValues current;
    std::vector<Decision> decisions;
    std::vector<float> probabilities, ratios, envelopes, masses;
    std::optional<BackendRange> range;
  };
  std::vector<Part> parts;
  Sums sums;
};

struct Case {
  std::string name;
  const Backend& backend;
  EvaluateParameters parameters;
  bool statistics = false;
  std::vector<double> nanoseconds = {};
};

void Measure(Case& c, Workload& workload) {
  static Statistics statistics;
  PrefixSums prefix_sums[kMaxPrefixPoints];
  const double start = ThreadSeconds();
  for (Workload::Part& part : workload.parts) {
    BackendRange range = *part.range;
    range.prefix_sums = std::span(prefix_sums).first(c.parameters.prefix_curve.size());
    if (c.statistics) {
      range.output.acceptance_probabilities = part.probabilities;
      range.output.log_ratios = part.ratios;
      range.output.log_envelopes = part.envelopes;
      range.output.covered_masses = part.masses;
    }
    c.backend.Evaluate(c.parameters, {&range, 1});
    if (!c.statistics) continue;
    AddStatistics({.decisions = part.decisions,
                   .log_ratios = part.ratios,
                   .log_envelopes = part.envelopes,
                   .covered_masses = part.masses,
                   .acceptance_probabilities = part.probabilities},
                  statistics);
  }
  const double positions = static_cast<double>(workload.parts.size()) * kPositions;
  c.nanoseconds.push_back((ThreadSeconds() - start) / positions * 1e9);
}

void Run(int repetitions, int sequences) {
  static constexpr int kCurve[] = {1, 2, 5, 10, 20, 50};
  const ScalarBackend scalar{};
  const SimdBackend simd{};
  for (const int slots : {10, 50, 100}) {
    const auto curve =
        std::span(kCurve).first(std::ranges::upper_bound(kCurve, slots) - std::begin(kCurve));
    for (const BlockEncoding encoding : {BlockEncoding::kFloat32, BlockEncoding::kFixed16}) {
      Workload workload(slots, encoding, sequences);
      Case cases[] = {{"scalar", scalar, {slots, 0}},
                      {"simd", simd, {slots, 0}},
                      {"  with statistics", simd, {slots, 0}, true},
                      {"  with prefix curve", simd, {slots, 0, false, curve}},
                      {"  with total variation", simd, {slots, 0, true}},
                      {"  with k = K / 2", simd, {slots / 2, 0}}};
      for (int repetition = 0; repetition < repetitions; ++repetition) {
        for (Case& c : cases) Measure(c, workload);
      }
      std::printf("K = %d, %s: ns a position, median (least, most)\n", slots,
                  encoding == BlockEncoding::kFloat32 ? "float32" : "fixed16");
      for (Case& c : cases) {
        std::ranges::sort(c.nanoseconds);
        std::printf("  %-24s %7.1f (%.1f, %.1f)\n", c.name.c_str(),
                    c.nanoseconds[c.nanoseconds.size() / 2], c.nanoseconds.front(),
                    c.nanoseconds.back());
      }
    }
  }
}

}  // namespace
}  // namespace sis

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 9;
  const int sequences = argc > 2 ? std::atoi(argv[2]) : 300;
  if (repetitions < 1 || sequences < 1) {
    std::fprintf(stderr, "usage: kernels [repetitions] [sequences]\n");
    return 1;
  }
  sis::Run(repetitions, sequences);
}
