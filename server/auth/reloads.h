// Reloads files, and reports failures.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace sis {

// Reloads one kind of files. Reload must be called by one thread; failed is thread-safe.
class Reloads {
 public:
  // `read` reads the files, and returns true if their content has changed.
  Reloads(std::string what, std::function<absl::StatusOr<bool>()> read)
      : what_(std::move(what)), read_(std::move(read)) {}

  // Reads the files. Logs changes, and new errors, to stderr.
  void Reload();

  const std::string& what() const { return what_; }
  // Returns true if the files are invalid, so that an earlier version is in use.
  bool failed() const { return failed_; }

 private:
  const std::string what_;
  const std::function<absl::StatusOr<bool>()> read_;
  std::string problem_;
  std::atomic<bool> failed_ = false;
};

}  // namespace sis
