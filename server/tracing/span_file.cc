#include "server/tracing/span_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace sis {
namespace {

// How many bytes of it got there.
size_t WriteAll(int file, absl::string_view text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t some = write(file, text.data() + written, text.size() - written);
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) break;
    written += some;
  }
  return written;
}

absl::Status NoRegularFile(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
}

}  // namespace

absl::Status SpanFile::Check(const std::string& path) {
  struct stat found;
  const bool exists = stat(path.c_str(), &found) == 0;
  if (exists && !S_ISREG(found.st_mode)) return NoRegularFile(path);
  // The folder is all up to the last slash, if there is one.
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  const int error = exists ? access(path.c_str(), W_OK)
                           : access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK);
  if (error == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", strerror(errno)));
}

absl::StatusOr<std::unique_ptr<SpanFile>> SpanFile::Open(const std::string& path,
                                                         const SpanSource& source) {
  // Without O_NONBLOCK it would wait for a reader of a FIFO.
  const int file =
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, S_IRUSR | S_IWUSR);
  if (file < 0) return absl::InvalidArgumentError(absl::StrCat(path, ": ", strerror(errno)));
  struct stat found;
  if (fstat(file, &found) != 0 || !S_ISREG(found.st_mode)) {
    close(file);
    return NoRegularFile(path);
  }
  return std::unique_ptr<SpanFile>(new SpanFile(file, source));
}

SpanFile::SpanFile(int file, SpanSource source)
    : file_(file), source_(std::move(source)), thread_([this] { Run(); }) {}

SpanFile::~SpanFile() {
  {
    WriterLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
  close(file_);
}

void SpanFile::Add(Span span) {
  {
    WriterLock lock(mutex_);
    if (waiting_.size() == kMostWaiting) {
      ++dropped_;
      return;
    }
    waiting_.push_back(std::move(span));
  }
  changed_.notify_one();
}

void SpanFile::Run() {
  std::vector<Span> spans;
  for (bool stopping = false; !stopping;) {
    spans.clear();
    {
      WriterLock lock(mutex_);
      while (waiting_.empty() && !stopping_) changed_.wait(mutex_);
      stopping = stopping_;
      spans.swap(waiting_);
    }
    if (!spans.empty()) Write(spans);
  }
}

void SpanFile::Write(const std::vector<Span>& spans) {
  std::vector<std::string> span_ids(spans.size());
  std::uniform_int_distribution<uint64_t> not_zero(1);
  for (std::string& span_id : span_ids) span_id = absl::StrFormat("%016x", not_zero(random_));
  const std::string line =
      absl::StrCat(torn_ ? "\n" : "", OtlpJson(source_, spans, span_ids), "\n");
  const size_t written = WriteAll(file_, line);
  if (written < line.size()) dropped_ += static_cast<int64_t>(spans.size());
  if (written > 0) torn_ = written < line.size();
}

}  // namespace sis
