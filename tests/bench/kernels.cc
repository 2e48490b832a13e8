// How near the decision comes to the speed at which one core reads memory.
//
//     kernels [repetitions] [MiB per workload]
//
// Every repetition measures the memory and each backend, layout and K in turn, so that ratios are
// between neighbours in time; printed are medians, and the least and most of the ratio.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/decide/scalar_backend.h"
#include "kernels/decide/simd_backend.h"
#include "kernels/decide/statistics.h"
#include "tests/bench/read_bandwidth.h"
#include "tests/bench/workload.h"

namespace sis {
namespace {

// Bytes per second.
double ReadBandwidth(std::span<const uint64_t> memory) {
  const double start = ThreadSeconds();
  const volatile uint64_t sum = ReadAll(std::as_bytes(memory));
  static_cast<void>(sum);
  return static_cast<double>(memory.size_bytes()) / (ThreadSeconds() - start);
}

// Where the values go that statistics are counted from: memory that is used again and again, as the
// service does it.
struct DecidedValues {
  std::vector<float> acceptance_probabilities;
  std::vector<float> log_ratios;
  std::vector<float> log_envelopes;
  std::vector<float> covered_masses;

  explicit DecidedValues(size_t n)
      : acceptance_probabilities(n), log_ratios(n), log_envelopes(n), covered_masses(n) {}
  void AddTo(OutputView& output) {
    output.acceptance_probabilities = acceptance_probabilities;
    output.log_ratios = log_ratios;
    output.log_envelopes = log_envelopes;
    output.covered_masses = covered_masses;
  }
};

struct Case {
  std::string name;
  const Backend* backend;
  EvaluateParameters parameters;
  const Workload* workload;
  std::vector<BackendRange> ranges;
  bool statistics = false;
  std::vector<double> tokens_per_second = {};
  std::vector<double> bandwidth_ratios = {};
};

void Measure(Case& c, double bandwidth) {
  const double start = ThreadSeconds();
  if (c.statistics) {
    static Statistics statistics;
    for (const BackendRange& range : c.ranges) {
      c.backend->Evaluate(c.parameters, {&range, 1});
      const OutputView& output = range.output;
      AddStatistics({.decisions = output.decisions,
                     .log_ratios = output.log_ratios,
                     .log_envelopes = output.log_envelopes,
                     .covered_masses = output.covered_masses,
                     .acceptance_probabilities = output.acceptance_probabilities},
                    *range.sums, statistics);
    }
  } else {
    c.backend->Evaluate(c.parameters, c.ranges);
  }
  const double seconds = ThreadSeconds() - start;
  const double tokens = static_cast<double>(c.ranges.size() * Workload::kSequencePositions);
  c.tokens_per_second.push_back(tokens / seconds);
  c.bandwidth_ratios.push_back(tokens * c.workload->BytesPerPosition() / seconds / bandwidth);
}

void Run(int repetitions, size_t workload_bytes) {
  struct NamedLayout {
    const char* name;
    Layout layout;
  };
  constexpr NamedLayout kLayouts[] = {
      {"float32", Layout::kFloat32}, {"fixed16", Layout::kFixed16}, {"reduced", Layout::kReduced}};
  static constexpr int kCurve[] = {1, 2, 5, 10, 20, 50};
  PrefixSums prefix_sums[std::size(kCurve)];
  DecidedValues values(Workload::kSequencePositions);
  const ScalarBackend scalar{};
  const SimdBackend simd{};
  HugeArray<uint64_t> memory(workload_bytes / sizeof(uint64_t));
  std::ranges::fill(memory.span(), 1);

  for (const int slots : {10, 50, 100}) {
    std::vector<std::unique_ptr<Workload>> workloads;
    std::vector<Case> cases;
    for (const auto& [name, layout] : kLayouts) {
      if (layout == Layout::kReduced && slots != 10) continue;
      workloads.push_back(std::make_unique<Workload>(slots, layout, workload_bytes));
      const Workload& workload = *workloads.back();
      for (const Backend* backend :
           {static_cast<const Backend*>(&scalar), static_cast<const Backend*>(&simd)}) {
        const std::span<const BackendRange> ranges = workload.ranges();
        // The scalar one is limited by arithmetic: a tenth is enough to time.
        const size_t count =
            backend == &scalar ? std::max<size_t>(1, ranges.size() / 10) : ranges.size();
        cases.push_back(
            {name, backend, {slots, 0}, &workload, {ranges.begin(), ranges.begin() + count}});
      }
      const Case plain = cases.back();
      if (layout != Layout::kFloat32) {
        Case counted = plain;
        counted.name = "  with statistics";
        counted.statistics = true;
        for (BackendRange& range : counted.ranges) values.AddTo(range.output);
        cases.push_back(std::move(counted));
      }
      if (layout != Layout::kFixed16) continue;
      Case curve = plain;
      curve.name = "  with prefix curve";
      curve.parameters.prefix_curve =
          std::span(kCurve).first(std::ranges::upper_bound(kCurve, slots) - std::begin(kCurve));
      for (BackendRange& range : curve.ranges) {
        range.prefix_sums = std::span(prefix_sums).first(curve.parameters.prefix_curve.size());
      }
      Case total_variation = plain;
      total_variation.name = "  with total variation";
      total_variation.parameters.total_variation = true;
      Case half = plain;
      half.name = "  with k = K / 2";
      half.parameters.top_k = slots / 2;
      cases.push_back(std::move(curve));
      cases.push_back(std::move(total_variation));
      cases.push_back(std::move(half));
    }
    std::vector<double> bandwidths;
    for (int repetition = -1; repetition < repetitions; ++repetition) {
      for (Case& c : cases) {
        const double bandwidth = ReadBandwidth(memory.span());
        Measure(c, bandwidth);
        if (repetition < 0) {  // warms up
          c.tokens_per_second.clear();
          c.bandwidth_ratios.clear();
        } else {
          bandwidths.push_back(bandwidth);
        }
      }
    }
    std::printf("K = %d; one core reads %.1f GB/s (median of %zu)\n", slots,
                SpreadOf(bandwidths).median / 1e9, bandwidths.size());
    std::printf("  %-22s %-10s %9s %8s %7s   %s\n", "layout", "backend", "Mtokens/s", "B/token",
                "GB/s", "of the read bandwidth: median (least, most)");
    for (Case& c : cases) {
      const Spread ratio = SpreadOf(c.bandwidth_ratios);
      const double tokens = SpreadOf(c.tokens_per_second).median;
      const double bytes = c.workload->BytesPerPosition();
      std::printf("  %-22s %-10s %9.1f %8.0f %7.2f   %.2f (%.2f, %.2f)\n", c.name.c_str(),
                  std::string(c.backend->name()).c_str(), tokens / 1e6, bytes, tokens * bytes / 1e9,
                  ratio.median, ratio.least, ratio.most);
    }
  }
}

}  // namespace
}  // namespace sis

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 9;
  const size_t mebibytes = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 256;
  if (repetitions < 1 || mebibytes < 1) {
    std::fprintf(stderr, "usage: kernels [repetitions] [MiB per workload]\n");
    return 1;
  }
  sis::Run(repetitions, mebibytes << 20);
}
