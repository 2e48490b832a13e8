#include "kernels/cuda/testing/bandwidth_report.h"

#include <algorithm>
#include <deque>
#include <iomanip>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/evaluate/batch.h"
#include "kernels/cuda/evaluate/device.h"
#include "kernels/cuda/testing/host_stage.h"
#include "kernels/cuda/testing/ragged_pages.h"
#include "kernels/cuda/testing/resident_batch.h"
#include "kernels/records/log_probs.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis::cuda {
namespace {

constexpr size_t kPositions = 16 * 1024;    // of a block, before it is copied
constexpr size_t kPage = 64;                // positions of a page
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

// Positions of one sequence, of whichever layout.
class OneSequence {
 public:
  OneSequence(int slots, size_t positions)
      : decisions_(positions), batch_(size_t{1} << 30, size_t{1} << 30) {
    batch_.Reset({.slots = slots, .top_k = slots, .draw = 1});
  }

  // The next ones.
  void Add(const BehaviorView& behavior, const CurrentView& current) {
    const size_t count = current.sampled_log_probs.size();
    const Stretch stretch{.sequence_key = 1,
                          .first_position = static_cast<uint32_t>(added_),
                          .behavior = behavior,
                          .current = current,
                          .output = {.decisions = std::span(decisions_).subspan(added_, count)},
                          .sums = &sums_};
    for (size_t first = 0; first < count;) first += batch_.Take(stretch, first);
    added_ += count;
  }

  const Batch& batch() const { return batch_; }

 private:
  std::vector<Decision> decisions_;
  Sums sums_;
  Batch batch_;
  size_t added_ = 0;
};

// A line. `log_prob_bytes`: of the recorded log-probs and the current ones beside them, which must
// be read for a position.
absl::Status ReportBatch(const Batch& batch, double log_prob_bytes, const std::string& name,
                         std::ostream& out) {
  const size_t copies = kBytes / batch.input_bytes();
  const auto resident = ResidentBatch::New(batch, copies);
  if (!resident.ok()) return resident.status();

  // What must be read and written: docs/performance.md.
  const double bytes_per_position = log_prob_bytes + 10;
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
  if (*output != expected) return absl::InternalError(absl::StrCat(name, ": not the host's bytes"));

  const Spread fraction(fractions);
  std::ostringstream line;
  line << std::fixed << std::setprecision(0) << "| " << name << " | " << Spread(rates).median
       << " | " << Spread(rates).median * bytes_per_position * 1e-3 << " | "
       << Spread(read_rates).median << " | " << std::setprecision(2) << fraction.median << " ("
       << fraction.least << ", " << fraction.most << ") |\n";
  out << line.str() << std::flush;
  return absl::OkStatus();
}

absl::Status ReportFixed(int slots, LogProbEncoding encoding, const std::string& name,
                         std::ostream& out) {
  std::mt19937_64 random(1);
  const Positions positions = RandomPositions(random, slots, kPositions);
  std::vector<uint16_t> used(kPositions);
  std::vector<std::byte> rows(LogProbBytes(encoding, kPositions, slots));
  EncodeBehaviorLogProbs(encoding, positions.behavior_log_probs, slots, used, rows);
  BehaviorView behavior = positions.behavior();
  behavior.log_probs = {};
  behavior.grouped_log_probs = {.rows = rows, .encoding = encoding};
  OneSequence sequence(slots, kPositions);
  sequence.Add(behavior, positions.current());
  return ReportBatch(
      sequence.batch(),
      static_cast<double>(rows.size()) / kPositions + static_cast<double>(slots) * sizeof(float),
      absl::StrCat(slots, " | ", name), out);
}

// Without the unused slots, in 12 bits, page by page.
absl::Status ReportRagged(int slots, bool cut_to_mass, const std::string& name, std::ostream& out) {
  std::mt19937_64 random(1);
  const Positions positions = cut_to_mass ? PositionsCutToMass(random, slots, kPositions)
                                          : RandomPositions(random, slots, kPositions);
  std::deque<Positions> parts;
  std::deque<RaggedPage> pages;
  std::deque<UnpackedCounts> counts;
  OneSequence sequence(slots, kPositions);
  size_t used = 0;
  for (size_t first = 0; first < kPositions; first += kPage) {
    parts.push_back(positions.Slice(first, kPage));
    pages.emplace_back(parts.back());
    sequence.Add(pages.back().View(counts.emplace_back()), parts.back().current());
    used += pages.back().used_slots();
  }
  const double mean_used = static_cast<double>(used) / kPositions;
  std::ostringstream mean;
  mean << std::fixed << std::setprecision(1) << mean_used;
  // Of a position also its multiplier and its count.
  constexpr double kCodeBytes = LogProbBits(LogProbEncoding::kFixed12) / 8.0;
  return ReportBatch(sequence.batch(),
                     mean_used * (kCodeBytes + sizeof(float)) + kCodeBytes + sizeof(uint8_t),
                     absl::StrCat(slots, " | 12 bits, ", name, ", ", mean.str(), " used"), out);
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
      if (absl::Status status = ReportFixed(slots, encoding, name, out); !status.ok()) {
        return status;
      }
    }
  }
  for (const auto& [slots, cut_to_mass] : {std::pair{10, true}, {100, true}, {50, false}}) {
    const std::string name = cut_to_mass ? "cut to 0.97" : "not cut";
    if (absl::Status status = ReportRagged(slots, cut_to_mass, name, out); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace sis::cuda
