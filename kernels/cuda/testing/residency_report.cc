#include "kernels/cuda/testing/residency_report.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <iomanip>
#include <random>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/block/block.h"
#include "kernels/cuda/testing/cut_positions.h"
#include "kernels/decide/scalar_backend.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis::cuda {
namespace {

constexpr size_t kBlock = 1024;  // positions
// Blocks that differ in values; others are copies of these.
constexpr size_t kDistinct = 8;

// Input that one thread evaluates repeatedly.
struct Work {
  Work(int slots, bool cut, size_t positions, uint32_t seed)
      : slots(slots), decisions(positions / kBlock * kBlock), results(kBlock) {
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < std::min(kDistinct, block_count()); ++i) {
      packed.emplace_back(
          cut ? PositionsCutToMass(random, slots, kBlock) : RandomPositions(random, slots, kBlock),
          0, Packing{.encoding = BlockEncoding::kFixed16});
    }
    for (size_t i = 0; i < block_count(); ++i) {
      const BlockView& block = packed[i % packed.size()].blocks()[0];
      blocks.emplace_back(block.bytes.begin(), block.bytes.end());
      blocks.back().resize(block.bytes.size() + kBlockSlack);
    }
    Rename();
  }

  size_t block_count() const { return decisions.size() / kBlock; }
  EvaluateParameters parameters() const { return {.top_k = slots, .draw = 1}; }

  // No copy is found again.
  void Rename() {
    tags.clear();
    tags.resize(block_count());
  }

  void Evaluate(const Backend& backend, bool with_tags) {
    sums = {};
    const size_t blocks_per_call =
        std::max<size_t>(1, backend.values_per_call() / static_cast<size_t>(slots) / kBlock);
    std::vector<BackendRange> ranges;
    for (size_t i = 0; i < block_count(); ++i) {
      const Packed& values = packed[i % packed.size()];
      BackendRange& range = ranges.emplace_back(values.RangeOf(0, kBlock, 1, results, 0));
      range.first_position = static_cast<uint32_t>(i * kBlock);
      const BlockHeader& header = values.blocks()[0].header;
      range.behavior =
          BlockRange(BlockView(header, std::span(blocks[i]).first(blocks[i].size() - kBlockSlack)),
                     0, kBlock, with_tags ? &tags[i] : nullptr);
      range.output = {.decisions = std::span(decisions).subspan(i * kBlock, kBlock)};
      range.sums = &sums;
      if (ranges.size() < blocks_per_call && i + 1 < block_count()) continue;
      backend.Evaluate(parameters(), ranges);
      ranges.clear();
    }
  }

  int slots;
  std::deque<Packed> packed;
  std::deque<std::vector<std::byte>> blocks;  // each with its slack
  std::deque<BlockTag> tags;
  std::vector<Decision> decisions;
  Results results;  // of RangeOf, overwritten
  Sums sums;
};

enum class Blocks { kStaged, kCopied, kThere };

// A column of the report.
struct Way {
  const Backend& backend;
  Blocks blocks;
};

// Mtokens/s of all threads.
double Rate(const Way& way, std::deque<Work>& works) {
  if (way.blocks == Blocks::kCopied) {
    for (Work& work : works) work.Rename();
  }
  size_t positions = 0;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (Work& work : works) {
    positions += work.decisions.size();
    threads.emplace_back([&] { work.Evaluate(way.backend, way.blocks != Blocks::kStaged); });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(positions) / seconds.count() * 1e-6;
}

absl::Status ReportCase(const Backend& backend, const Backend& cpu,
                        const ResidencyReportOptions& options, int slots, bool cut,
                        std::ostream& out) {
  std::deque<Work> works;
  for (int i = 0; i < options.threads; ++i) {
    works.emplace_back(slots, cut, options.positions / options.threads, static_cast<uint32_t>(i));
  }
  std::vector<std::vector<Decision>> expected;
  std::vector<Sums> expected_sums;
  for (Work& work : works) {
    work.Evaluate(ScalarBackend(), false);
    expected.push_back(work.decisions);
    expected_sums.push_back(work.sums);
  }

  std::ostringstream line;
  line << std::fixed << std::setprecision(0) << "| " << slots << (cut ? ", cut" : "");
  for (const Way& way : {Way{cpu, Blocks::kStaged}, Way{backend, Blocks::kStaged},
                         Way{backend, Blocks::kCopied}, Way{backend, Blocks::kThere}}) {
    std::vector<double> rates;
    for (int round = -1; round < options.rounds; ++round) {  // the first warms up
      const ResidentBlocksStats before = backend.resident_blocks();
      const double rate = Rate(way, works);
      const ResidentBlocksStats after = backend.resident_blocks();
      if (round >= 0) rates.push_back(rate);
      if (after.passes > before.passes ||
          (way.blocks == Blocks::kThere && after.copies > before.copies)) {
        return absl::InternalError(absl::StrCat("K = ", slots, ": the memory doesn't hold it all"));
      }
      for (size_t i = 0; i < works.size(); ++i) {
        if (works[i].decisions != expected[i] || works[i].sums != expected_sums[i]) {
          return absl::InternalError(absl::StrCat("K = ", slots, ": not the scalar bytes"));
        }
      }
    }
    std::ranges::sort(rates);
    line << " | " << rates[rates.size() / 2] << " (" << rates.front() << ", " << rates.back()
         << ")";
  }
  out << line.str() << " |\n" << std::flush;
  return absl::OkStatus();
}

}  // namespace

absl::Status ReportResidency(const Backend& backend, const Backend& cpu,
                             const ResidencyReportOptions& options, std::ostream& out) {
  out << "Calls from host memory, " << options.threads << " threads, fixed16, Mtokens/s:\n\n"
      << "| K | the CPU | staged for each call | copied to stay | there |\n"
      << "|---|---|---|---|---|\n";
  for (const auto& [slots, cut] :
       {std::pair{10, false}, {50, false}, {100, false}, {10, true}, {100, true}}) {
    if (absl::Status status = ReportCase(backend, cpu, options, slots, cut, out); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace sis::cuda
