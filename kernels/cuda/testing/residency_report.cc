#include "kernels/cuda/testing/residency_report.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <iomanip>
#include <random>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/testing/ragged_pages.h"
#include "kernels/decide/scalar_backend.h"
#include "kernels/records/log_probs.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis::cuda {
namespace {

constexpr size_t kPage = 64;
// Pages of sets cut to their mass differ in length.
constexpr int kRaggedPages = 64;
constexpr LogProbEncoding kEncoding = LogProbEncoding::kFixed12;

// The packed rows of a page, and their name.
struct PackedPage {
  PackedPage(const Positions& positions, size_t first, int slots)
      : rows_bytes(LogProbBytes(kEncoding, kPage, slots)),
        bytes(rows_bytes + kPage * (sizeof(float) + 1)) {
    const Positions part = positions.Slice(first, kPage);
    std::vector<uint16_t> used(kPage);
    EncodeBehaviorLogProbs(kEncoding, part.behavior_log_probs, slots, used,
                           std::span(bytes).first(rows_bytes));
    std::memcpy(bytes.data() + rows_bytes, part.behavior_sampled_log_probs.data(),
                kPage * sizeof(float));
    for (size_t i = 0; i < kPage; ++i) {
      const uint16_t rank = part.sampled_ranks[i];
      bytes[rows_bytes + kPage * sizeof(float) + i] =
          static_cast<std::byte>(rank < used[i] ? rank : kRankOutside);
    }
    tag.Renew();
  }

  BehaviorView View(bool fixed) const {
    const auto* sampled = reinterpret_cast<const float*>(bytes.data() + rows_bytes);
    const auto* ranks = reinterpret_cast<const uint8_t*>(sampled + kPage);
    BehaviorView view{
        .log_probs = {},
        .sampled_log_probs = {sampled, kPage},
        .sampled_ranks = {ranks, kPage},
        .grouped_log_probs = {.rows = std::span(bytes).first(rows_bytes), .encoding = kEncoding}};
    if (fixed) view.fixed_rows = {bytes, &tag};
    return view;
  }

  size_t rows_bytes;
  std::vector<std::byte> bytes;
  RowsTag tag;
};

// What one thread evaluates, again and again. The same values for many pages; their rows are each
// page's own.
struct Work {
  Work(int slots, bool ragged, size_t positions, uint32_t seed)
      : slots(slots), decisions(positions / kPage * kPage) {
    std::mt19937_64 random(seed);
    if (!ragged) values.push_back(RandomPositions(random, slots, kPage));
    for (int i = 0; ragged && i < kRaggedPages; ++i) {
      values.push_back(PositionsCutToMass(random, slots, kPage));
    }
    for (size_t i = 0; i < page_count(); ++i) {
      if (ragged) {
        ragged_pages.emplace_back(values[i % values.size()]);
      } else {
        pages.emplace_back(values.front(), 0, slots);
      }
    }
  }

  size_t page_count() const { return decisions.size() / kPage; }
  EvaluateParameters parameters() const { return {.slots = slots, .top_k = slots, .draw = 1}; }

  void Evaluate(const Backend& backend, bool fixed) {
    sums = {};
    const size_t pages_per_call = std::max<size_t>(1, backend.values_per_call() / slots / kPage);
    counts.resize(std::max(counts.size(), pages_per_call));
    std::vector<Stretch> stretches;
    for (size_t i = 0; i < page_count(); ++i) {
      stretches.push_back({.sequence_key = 1,
                           .first_position = static_cast<uint32_t>(i * kPage),
                           .behavior = ragged_pages.empty()
                                           ? pages[i].View(fixed)
                                           : ragged_pages[i].View(counts[stretches.size()]),
                           .current = values[i % values.size()].current(),
                           .output = {.decisions = std::span(decisions).subspan(i * kPage, kPage)},
                           .sums = &sums});
      if (stretches.size() < pages_per_call && i + 1 < page_count()) continue;
      backend.Evaluate(parameters(), stretches);
      stretches.clear();
    }
  }

  int slots;
  std::vector<Positions> values;
  std::deque<PackedPage> pages;  // or
  std::deque<RaggedPage> ragged_pages;
  std::vector<UnpackedCounts> counts;  // of a call
  std::vector<Decision> decisions;
  Sums sums;
};

enum class Rows { kStaged, kCopied, kThere };

// A column of the report.
struct Way {
  const Backend& backend;
  Rows rows;
};

// Mtokens/s of all threads.
double Rate(const Way& way, std::deque<Work>& works) {
  if (way.rows == Rows::kCopied) {
    for (Work& work : works) {
      for (PackedPage& page : work.pages) page.tag.Renew();
    }
  }
  size_t positions = 0;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (Work& work : works) {
    positions += work.decisions.size();
    threads.emplace_back([&] { work.Evaluate(way.backend, way.rows != Rows::kStaged); });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(positions) / seconds.count() * 1e-6;
}

absl::Status ReportCase(const Backend& backend, const Backend& cpu,
                        const ResidencyReportOptions& options, int slots, bool ragged,
                        std::ostream& out) {
  std::deque<Work> works;
  for (int i = 0; i < options.threads; ++i) {
    works.emplace_back(slots, ragged, options.positions / options.threads,
                       static_cast<uint32_t>(i));
  }
  std::vector<std::vector<Decision>> expected;
  std::vector<Sums> expected_sums;
  for (Work& work : works) {
    work.Evaluate(ScalarBackend(), false);
    expected.push_back(work.decisions);
    expected_sums.push_back(work.sums);
  }

  std::ostringstream line;
  line << std::fixed << std::setprecision(0) << "| " << slots << (ragged ? ", cut" : "");
  for (const Way& way : {Way{cpu, Rows::kStaged}, Way{backend, Rows::kStaged},
                         Way{backend, Rows::kCopied}, Way{backend, Rows::kThere}}) {
    if (ragged && way.rows != Rows::kStaged) {  // they never stay
      line << " | ";
      continue;
    }
    std::vector<double> rates;
    for (int round = -1; round < options.rounds; ++round) {  // the first warms up
      const ResidentBlocksStats before = backend.resident_blocks();
      const double rate = Rate(way, works);
      const ResidentBlocksStats after = backend.resident_blocks();
      if (round >= 0) rates.push_back(rate);
      if (after.passes > before.passes ||
          (way.rows == Rows::kThere && after.copies > before.copies)) {
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
  out << "Calls from host memory, " << options.threads << " threads, 12 bits, Mtokens/s:\n\n"
      << "| K | the CPU | rows staged for each call | copied to stay | there |\n"
      << "|---|---|---|---|---|\n";
  for (const auto& [slots, ragged] :
       {std::pair{10, false}, {50, false}, {100, false}, {10, true}, {100, true}}) {
    if (absl::Status status = ReportCase(backend, cpu, options, slots, ragged, out); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace sis::cuda
