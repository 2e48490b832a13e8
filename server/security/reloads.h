// How it went when files that clients depend on were read again.
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace sis {

// Of one kind of files. Note is for one thread, failed for all.
class Reloads {
 public:
  explicit Reloads(std::string what) : what_(std::move(what)) {}

  // What came of the last time, which is said on stderr where it is news. `changed` says whether
  // they held something else than before.
  void Note(const absl::Status& status, bool changed);

  const std::string& what() const { return what_; }
  // Whether what is in use is older than the files, as these make no sense.
  bool failed() const { return failed_; }

 private:
  const std::string what_;
  std::string problem_;
  std::atomic<bool> failed_ = false;
};

}  // namespace sis
