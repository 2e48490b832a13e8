// The streams that clients have open.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "server/threads/mutex.h"

namespace sis {

// So that a server that shuts down need not wait for clients that are idle. Thread-safe. Its lock
// comes before those of the streams.
class OpenStreams {
 public:
  class Stream {
   public:
    // The server shuts down. Answers the requests that it has, then ends, with Unavailable, so that
    // the client goes on elsewhere.
    virtual void Close() = 0;

   protected:
    explicit Stream(OpenStreams& streams) : streams_(streams) {}
    ~Stream() = default;

    // In between it may be closed, by another thread.
    void Register() { streams_.Add(*this); }
    void Unregister() { streams_.Remove(*this); }

   private:
    OpenStreams& streams_;
  };

  // Closes all, and those that are opened later.
  void Close();

 private:
  void Add(Stream& stream);
  void Remove(Stream& stream);

  Mutex mutex_;
  absl::flat_hash_set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sis
