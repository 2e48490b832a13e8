#include "client/study/results.h"

#include <cstdio>
#include <fstream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace sis::study {
namespace {

constexpr char kHeading[] =
    "# cell arm seed final_reward final_greedy mean_reward accept_rate d d_sis entropy zeroed "
    "largest_gradient curve";

}  // namespace

std::string ResultLine(const RunName& run, const RunResult& result) {
  const auto number = [](std::string* out, double value) {
    absl::StrAppendFormat(out, "%.5g", value);
  };
  const double values[] = {result.final_reward,
                           result.final_greedy,
                           result.mean_reward,
                           result.accept_rate,
                           result.d,
                           result.d_sis,
                           result.entropy,
                           result.zeroed,
                           result.largest_gradient};
  return absl::StrCat(run.text(), " ", absl::StrJoin(values, " ", number), " ",
                      absl::StrJoin(result.curve, ",", number));
}

absl::StatusOr<std::unique_ptr<Results>> Results::Open(const std::string& path,
                                                       const std::vector<RunName>& runs) {
  std::set<std::string> known;
  for (const RunName& run : runs) known.insert(run.text());
  std::unique_ptr<Results> results(new Results(path, runs));
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    // Without an end of line it was cut off.
    if (file.eof() || line.starts_with('#')) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    const std::string name = absl::StrCat(words[0], " ", words.size() > 2 ? words[1] : "", " ",
                                          words.size() > 2 ? words[2] : "");
    if (!known.contains(name)) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": \"", name, "\" is no run of this design"));
    }
    results->lines_[name] = line;
  }
  // So that what was cut off is gone from the file too.
  const absl::Status status = results->Sort();
  if (!status.ok()) return status;
  return results;
}

bool Results::Has(const RunName& run) const {
  const std::lock_guard lock(mutex_);
  return lines_.contains(run.text());
}

size_t Results::count() const {
  const std::lock_guard lock(mutex_);
  return lines_.size();
}

absl::Status Results::Add(const RunName& run, const RunResult& result) {
  const std::lock_guard lock(mutex_);
  const std::string line = ResultLine(run, result);
  lines_[run.text()] = line;
  std::ofstream file(path_, std::ios::app);
  file << line << "\n" << std::flush;
  if (!file) return absl::UnavailableError(absl::StrCat(path_, ": can't be written"));
  return absl::OkStatus();
}

absl::Status Results::Sort() const {
  const std::lock_guard lock(mutex_);
  const std::string next = path_ + ".next";
  std::ofstream file(next);
  file << kHeading << "\n";
  for (const RunName& run : runs_) {
    const auto line = lines_.find(run.text());
    if (line != lines_.end()) file << line->second << "\n";
  }
  file.close();
  if (!file || std::rename(next.c_str(), path_.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat(path_, ": can't be written"));
  }
  return absl::OkStatus();
}

}  // namespace sis::study
