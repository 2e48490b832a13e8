#include "kernels/cuda/testing/bandwidth_report.h"

#include <algorithm>
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
#include "kernels/records/log_probs.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis::cuda {
namespace {

constexpr size_t kPositions = 16 * 1024;    // of a block, before it is copied
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

absl::Status ReportCase(int slots, LogProbEncoding encoding, const std::string& name,
                        std::ostream& out) {
  std::mt19937_64 random(1);
  const Positions positions = RandomPositions(random, slots, kPositions);
  std::vector<uint16_t> used(kPositions);
  std::vector<std::byte> behavior(LogProbBytes(encoding, kPositions, slots));
  EncodeBehaviorLogProbs(encoding, positions.behavior_log_probs, slots, used, behavior);
  std::vector<Decision> decisions(kPositions);
  Sums sums;
  Stretch stretch{.sequence_key = 1,
                  .first_position = 0,
                  .behavior = positions.behavior(),
                  .current = positions.current(),
                  .output = {.decisions = decisions},
                  .sums = &sums};
  stretch.behavior.log_probs = {};
  stretch.behavior.grouped_log_probs = {.rows = behavior, .encoding = encoding};

  Batch batch(size_t{1} << 30, size_t{1} << 30);
  batch.Reset({.slots = slots, .top_k = slots, .draw = 1});
  for (size_t first = 0; first < kPositions;) first += batch.Take(stretch, first);
  const size_t copies = kBytes / batch.input_bytes();
  const auto resident = ResidentBatch::New(batch, copies);
  if (!resident.ok()) return resident.status();

  // What must be read and written: docs/performance.md.
  const double bytes_per_position =
      static_cast<double>(LogProbBytes(encoding, kPositions, slots)) / kPositions +
      static_cast<double>(slots) * sizeof(float) + 10;
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

  std::vector<std::byte> input(batch.input_bytes());
  std::vector<std::byte> expected(batch.output_bytes());
  batch.WriteInput(input.data());
  RunBlocksOnHost(batch.View(input.data(), nullptr, expected.data()));
  const absl::StatusOr<std::vector<std::byte>> output = (*resident)->LastOutput();
  if (!output.ok()) return output.status();
  if (*output != expected) {
    return absl::InternalError(absl::StrCat("K = ", slots, ", ", name, ": not the host's bytes"));
  }

  const Spread fraction(fractions);
  std::ostringstream line;
  line << std::fixed << std::setprecision(0) << "| " << slots << " | " << name << " | "
       << Spread(rates).median << " | " << Spread(rates).median * bytes_per_position * 1e-3 << " | "
       << Spread(read_rates).median << " | " << std::setprecision(2) << fraction.median << " ("
       << fraction.least << ", " << fraction.most << ") |\n";
  out << line.str() << std::flush;
  return absl::OkStatus();
}

}  // namespace

absl::Status ReportBandwidth(std::ostream& out) {
  const absl::StatusOr<std::string> device = DeviceName();
  if (!device.ok()) return device.status();
  out << "Device: " << *device << "\n\n"
      << "| K | log-probs | Mtokens/s | GB/s | device reads, GB/s | of the read bandwidth |\n"
      << "|---|---|---|---|---|---|\n";
  for (const int slots : {10, 50, 100}) {
    for (const auto& [encoding, name] : {std::pair{LogProbEncoding::kFloat32, "float32"},
                                         std::pair{LogProbEncoding::kFloat16, "float16"},
                                         std::pair{LogProbEncoding::kFixed12, "12 bits"}}) {
      if (absl::Status status = ReportCase(slots, encoding, name, out); !status.ok()) {
        return status;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace sis::cuda
