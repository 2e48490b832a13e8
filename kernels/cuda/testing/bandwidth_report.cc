#include "kernels/cuda/testing/bandwidth_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iomanip>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/evaluate/batch.h"
#include "kernels/cuda/evaluate/device.h"
#include "kernels/cuda/testing/host_stage.h"
#include "kernels/cuda/testing/resident_batch.h"
#include "kernels/numerics/log_prob.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis::cuda {
namespace {

constexpr size_t kPositions = 16 * 1024;    // of a batch, before it is copied
constexpr size_t kBytes = size_t{2} << 30;  // of all copies: far more than any cache
constexpr int kRounds = 9;                  // each measures both, in turn

// Median and range.
struct Spread {
  explicit Spread(std::vector<double> values) {
    std::ranges::sort(values);
    least = values.front();
    median = values[values.size() / 2];
    most = values.back();
  }
  double least;
  double median;
  double most;
};

// Returns random positions of at most `slots` slots. The number of used slots is distributed as in
// Qwen3-4B's recorded sets, cut at a mass of 0.97 (tests/bench/trainer_path/batch.py): mostly one,
// rarely many.
Positions PositionsCutToMass(std::mt19937_64& random, int slots, size_t n) {
  Positions positions = RandomPositions(random, slots, n);
  const auto k = static_cast<size_t>(slots);
  for (size_t i = 0; i < n; ++i) {
    const bool one = std::uniform_real_distribution<double>()(random) < 0.5;
    const double more = 2 + std::exp(std::normal_distribution<double>(0.5, 1.6)(random));
    const size_t used = one ? 1 : static_cast<size_t>(std::min<double>(slots, std::floor(more)));
    for (size_t slot = i * k + used; slot < (i + 1) * k; ++slot) {
      // A sampled token from the tail stays outside the set.
      positions.ids[slot] = -1;
      positions.behavior_log_probs[slot] = kMinusInfinity;
    }
  }
  return positions;
}

// Prints a line about a batch that is read repeatedly from the device's memory.
absl::Status ReportCase(int slots, bool cut, Packing packing, std::ostream& out) {
  std::mt19937_64 random(1);
  const Packed packed(cut ? PositionsCutToMass(random, slots, kPositions)
                          : RandomPositions(random, slots, kPositions),
                      0, packing);
  std::vector<Decision> decisions(kPositions);
  Results results(kMaxBlockPositions);
  Batch batch(size_t{1} << 30, size_t{1} << 30);
  batch.Reset({.top_k = slots, .draw = 1});
  size_t used = 0;
  for (size_t first = 0; first < kPositions;) {
    const size_t count = std::min(kPositions - first, packed.LeftOfBlock(first));
    BackendRange range = packed.RangeOf(first, count, 1, results, 0);
    range.output = {.decisions = std::span(decisions).subspan(first, count)};
    used += range.behavior.used_slots;
    for (size_t taken = 0; taken < count;) taken += batch.Take(range, taken);
    first += count;
  }
  const double mean_used = static_cast<double>(used) / kPositions;
  const bool fixed = packing.encoding == BlockEncoding::kFixed16;
  // Bytes that an evaluation must read and write (docs/performance.md): for each slot both
  // log-probs; for each position both sampled log-probs, the rank, the count, perhaps a multiplier,
  // and the decision.
  const double bytes_per_position =
      mean_used * ((fixed ? sizeof(uint16_t) : sizeof(float)) + sizeof(float)) + 11 + fixed;

  const size_t copies = kBytes / batch.input_bytes();
  const auto resident = ResidentBatch::New(batch, copies);
  if (!resident.ok()) return resident.status();
  const double evaluated = static_cast<double>(copies) * kPositions;
  const size_t read = (*resident)->input_bytes();
  std::vector<double> fractions;
  std::vector<double> rates;
  std::vector<double> read_rates;
  for (int round = -1; round < kRounds; ++round) {  // the first warms up
    const absl::StatusOr<double> read_seconds = (*resident)->ReadSeconds(read);
    if (!read_seconds.ok()) return read_seconds.status();
    const absl::StatusOr<double> seconds = (*resident)->EvaluateSeconds();
    if (!seconds.ok()) return seconds.status();
    if (round < 0) continue;
    read_rates.push_back(static_cast<double>(read) / *read_seconds * 1e-9);
    rates.push_back(evaluated / *seconds * 1e-6);
    fractions.push_back(evaluated * bytes_per_position / *seconds * 1e-9 / read_rates.back());
  }

  const std::string name = absl::StrCat(slots, " | ", fixed ? "fixed16" : "float32");
  std::vector<std::byte> input(batch.input_bytes());
  std::vector<std::byte> expected(batch.output_bytes());
  batch.WriteInput(input.data());
  RunBlocksOnHost(batch.View(input.data(), nullptr, expected.data()));
  const absl::StatusOr<std::vector<std::byte>> output = (*resident)->LastOutput();
  if (!output.ok()) return output.status();
  if (*output != expected) return absl::InternalError(absl::StrCat(name, ": not the host's bytes"));

  const Spread fraction(fractions);
  std::ostringstream line;
  line << std::fixed << std::setprecision(1) << "| " << name << " | " << mean_used << " | "
       << std::setprecision(0) << Spread(rates).median << " | "
       << Spread(rates).median * bytes_per_position * 1e-3 << " | " << Spread(read_rates).median
       << " | " << std::setprecision(2) << fraction.median << " (" << fraction.least << ", "
       << fraction.most << ") |\n";
  out << line.str() << std::flush;
  return absl::OkStatus();
}

}  // namespace

absl::Status ReportBandwidth(std::ostream& out) {
  const absl::StatusOr<std::string> device = DeviceName();
  if (!device.ok()) return device.status();
  out << "Device: " << *device << "\n\n"
      << "| K | encoding | used | Mtokens/s | GB/s | device reads, GB/s | of the read bandwidth |\n"
      << "|---|---|---|---|---|---|---|\n";
  for (const BlockEncoding encoding : {BlockEncoding::kFloat32, BlockEncoding::kFixed16}) {
    for (const auto& [slots, cut] :
         {std::pair{10, false}, {50, false}, {100, false}, {10, true}, {100, true}}) {
      if (absl::Status status = ReportCase(slots, cut, {.encoding = encoding}, out); !status.ok()) {
        return status;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace sis::cuda
