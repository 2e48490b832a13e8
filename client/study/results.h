// The file of results: one line per run, words between blanks.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/study/cells.h"
#include "client/study/training.h"

namespace sis::study {

// "cell arm seed" and what came of it, without the end of line.
std::string ResultLine(const RunName& run, const RunResult& result);

// Thread-safe.
class Results {
 public:
  // Reads the file if there is one; a last line that was cut off is forgotten. What it holds must
  // be of these runs.
  static absl::StatusOr<std::unique_ptr<Results>> Open(const std::string& path,
                                                       const std::vector<RunName>& runs);

  bool Has(const RunName& run) const;
  size_t count() const;
  // Appends it to the file at once.
  absl::Status Add(const RunName& run, const RunResult& result);
  // Writes the file again, in the order of the runs: the same bytes whichever run ended first.
  absl::Status Sort() const;

 private:
  Results(std::string path, const std::vector<RunName>& runs)
      : path_(std::move(path)), runs_(runs) {}

  const std::string path_;
  const std::vector<RunName>& runs_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> lines_;  // by RunName::text(); guarded by mutex_
};

}  // namespace sis::study
