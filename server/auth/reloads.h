// How it went when files that clients depend on were read again.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace sis {

// Of one kind of files. Reload is for one thread, failed for all.
class Reloads {
 public:
  // `read` reads them, and returns whether they hold something else than before.
  Reloads(std::string what, std::function<absl::StatusOr<bool>()> read)
      : what_(std::move(what)), read_(std::move(read)) {}

  // Reads them, and says on stderr what comes of it where that is news.
  void Reload();

  const std::string& what() const { return what_; }
  // Whether what is in use is older than the files, as these make no sense.
  bool failed() const { return failed_; }

 private:
  const std::string what_;
  const std::function<absl::StatusOr<bool>()> read_;
  std::string problem_;
  std::atomic<bool> failed_ = false;
};

}  // namespace sis
