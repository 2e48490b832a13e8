// Runs all of a design, or goes on with it: client/study/study --cells=FILE --results=FILE.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/study/arm.h"
#include "client/study/cells.h"
#include "client/study/kernel_decisions.h"
#include "client/study/results.h"
#include "client/study/starts.h"
#include "client/study/training.h"

namespace sis::study {
namespace {

// One line that says how far it is: redrawn on a terminal, else printed now and then.
class Progress {
 public:
  Progress(size_t done, size_t all)
      : before_(done), all_(all), redraws_(isatty(STDERR_FILENO) != 0) {}

  void Show(size_t done, const std::string& last) {
    const auto now = std::chrono::steady_clock::now();
    const std::lock_guard lock(mutex_);
    if (!redraws_ && now - shown_ < std::chrono::seconds(30) && done < all_) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double left =
        seconds / static_cast<double>(done - before_) * static_cast<double>(all_ - done);
    const size_t full = 20 * done / all_;
    absl::FPrintF(stderr, "%s[%s%s] %d of %d runs, %.0f min left, last %s%s", redraws_ ? "\r" : "",
                  std::string(full, '#'), std::string(20 - full, '.'), done, all_, left / 60.0,
                  last, redraws_ ? "\x1b[K" : "\n");
    if (redraws_ && done == all_) std::cerr << "\n";
  }

 private:
  using Time = std::chrono::steady_clock::time_point;

  const size_t before_;
  const size_t all_;
  const bool redraws_;
  const Time start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  Time shown_;
};

RunResult Run(const Design& design, const RunName& run, Starts& starts) {
  const Cell& cell = *run.cell;
  const StartSettings& start = design.starts.at(cell.start);
  const Arm arm = *ParseArm(run.arm);
  std::vector<float> parameters = *starts.Get(cell.start, start, run.seed);
  KernelDecisions decisions(arm, run.seed, cell.settings.encoding);
  return Train(start, cell.settings, arm, run.seed, decisions, parameters);
}

int RunAll(const Design& design, const std::string& path, unsigned threads) {
  const std::vector<RunName> runs = RunsOf(design);
  const absl::StatusOr<std::unique_ptr<Results>> results = Results::Open(path, runs);
  if (!results.ok()) {
    std::cerr << results.status().message() << "\n";
    return 1;
  }
  std::vector<const RunName*> missing;
  for (const RunName& run : runs) {
    if (!(*results)->Has(run)) missing.push_back(&run);
  }
  std::cerr << missing.size() << " of " << runs.size() << " runs are to be made\n";
  Progress progress(runs.size() - missing.size(), runs.size());
  Starts starts;
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    for (size_t i; !failed && (i = next++) < missing.size();) {
      const RunName& run = *missing[i];
      const absl::Status status = (*results)->Add(run, Run(design, run, starts));
      if (!status.ok()) {
        std::cerr << status.message() << "\n";
        failed = true;
        return;
      }
      progress.Show((*results)->count(), run.text());
    }
  };
  std::vector<std::thread> workers;
  for (unsigned i = 1; i < threads; ++i) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  if (failed) return 1;
  const absl::Status status = (*results)->Sort();
  if (!status.ok()) std::cerr << status.message() << "\n";
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace sis::study

int main(int argc, char** argv) {
  CLI::App app("Trains a small transformer in every cell of a design, with every arm and seed.");
  std::string cells = "client/study/cells.txt", results;
  unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  app.add_option("--cells", cells, "the design")->check(CLI::ExistingFile)->capture_default_str();
  app.add_option("--results", results, "where results go; runs that are there are not repeated")
      ->required();
  app.add_option("--threads", threads, "runs at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::ifstream file(cells);
  std::stringstream text;
  text << file.rdbuf();
  const absl::StatusOr<sis::study::Design> design = sis::study::ParseDesign(text.str());
  if (!design.ok()) {
    std::cerr << cells << ": " << design.status().message() << "\n";
    return 1;
  }
  return sis::study::RunAll(*design, results, threads);
}
