// Tracks open streams, and counts all open calls.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cache/caller.h"
#include "server/rpc/rpc_metrics.h"
#include "server/threads/mutex.h"

namespace sis {

struct Resources;

// Lets a shutdown end idle streams. Cancels a stream whose client stops reading, so that its unsent
// messages are freed. Thread-safe. Its lock comes before those of the streams.
class OpenStreams {
 public:
  using Clock = std::function<absl::Time()>;

  // Maximum time for a client to receive one message.
  static constexpr absl::Duration kPatience = absl::Seconds(60);

  // Counts one call, unary or a stream, until its whole response has been sent.
  class Call {
   public:
    explicit Call(OpenStreams& streams) : streams_(streams) { streams_.CallBegins(); }
    ~Call() { streams_.CallEnds(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    OpenStreams& streams_;
  };

  class Stream {
   public:
    // Called at shutdown. Answers the requests received so far, then ends with Unavailable, so that
    // the client continues elsewhere.
    virtual void Close() = 0;
    // Cancels the call at any moment.
    void Cancel() { context_.TryCancel(); }
    // Returns true if the caller still has permission for the call.
    bool IsAllowed() const;

   protected:
    // `context` belongs to the call of `method`. `resources` must outlive the stream.
    Stream(grpc::CallbackServerContext& context, const Resources& resources, const char* method);
    ~Stream() = default;

    // Between these two calls, other threads may close and cancel the stream.
    void Register() { streams_.Add(*this); }
    void Unregister() { streams_.Remove(*this); }
    // Called around each write of a message.
    void WriteBegins() { write_began_ = absl::ToUnixNanos(streams_.clock_()); }
    void WriteEnds() { write_began_ = kNever; }

   private:
    friend class OpenStreams;
    static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

    OpenStreams& streams_;
    const Call call_;
    const char* const method_;
    std::atomic<int64_t> write_began_ = kNever;  // in nanoseconds

   protected:
    grpc::CallbackServerContext& context_;
    const Resources& resources_;
    // The caller, or the error that ends the call.
    const absl::StatusOr<Caller> caller_;
    const RpcTimer timer_;
  };

  explicit OpenStreams(Clock clock) : clock_(std::move(clock)) {}

  // Closes all streams, including those opened later.
  void Close();
  // Cancels streams whose client has not received a message for longer than kPatience.
  void CancelStalled();
  // Waits until no call is open. Returns false at the deadline.
  bool AwaitNone(absl::Time deadline) ABSL_LOCKS_EXCLUDED(calls_mutex_);
  // Cancels streams whose caller has lost the permission.
  void CancelDisallowed();

 private:
  void CallBegins() ABSL_LOCKS_EXCLUDED(calls_mutex_);
  void CallEnds() ABSL_LOCKS_EXCLUDED(calls_mutex_);
  void Add(Stream& stream);
  void Remove(Stream& stream);

  const Clock clock_;
  Mutex mutex_;
  absl::flat_hash_set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;

  Mutex calls_mutex_;  // a leaf
  int64_t calls_ ABSL_GUARDED_BY(calls_mutex_) = 0;
  std::condition_variable_any none_left_;
};

}  // namespace sis
