// A file of spans, which OpenTelemetry's collector follows (its receiver otlpjsonfile).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/threads/mutex.h"
#include "server/tracing/otlp_json.h"

namespace sis {

// Appends a line for what has come since the last one, by a thread of its own, so that no call
// waits for a disk. Thread-safe. The destructor writes what it has.
class SpanFile {
 public:
  // Spans beyond these that the thread has not come to are dropped.
  static constexpr size_t kMostWaiting = 4096;

  // Makes the file if need be. InvalidArgument if it can't be written, or is no regular file.
  static absl::StatusOr<std::unique_ptr<SpanFile>> Open(const std::string& path,
                                                        const SpanSource& source);
  // The same errors as far as they can be told without making it.
  static absl::Status Check(const std::string& path);
  ~SpanFile();
  SpanFile(const SpanFile&) = delete;
  SpanFile& operator=(const SpanFile&) = delete;

  void Add(Span span) ABSL_LOCKS_EXCLUDED(mutex_);
  // For lack of room in the queue, or on the disk.
  int64_t dropped() const { return dropped_; }

 private:
  SpanFile(int file, SpanSource source);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Write(const std::vector<Span>& spans);

  const int file_;
  const SpanSource source_;
  std::atomic<int64_t> dropped_ = 0;
  // Of the thread.
  std::mt19937_64 random_{std::random_device()()};
  bool torn_ = false;  // the last line has no end

  Mutex mutex_;
  std::vector<Span> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::condition_variable_any changed_;
  std::thread thread_;
};

}  // namespace sis
