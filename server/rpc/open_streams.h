// The streams that clients have open, and how many calls of any kind there are.
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

// So that a server that shuts down need not wait for clients that are idle, and that a client that
// reads nothing can't hold what it is to be sent for good. Thread-safe. Its lock comes before those
// of the streams.
class OpenStreams {
 public:
  using Clock = std::function<absl::Time()>;

  // How long a client may take to take one message.
  static constexpr absl::Duration kPatience = absl::Seconds(60);

  // Counts one call, unary or a stream, until all that it is answered has been sent.
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
    // The server shuts down. Answers the requests that it has, then ends, with Unavailable, so that
    // the client goes on elsewhere.
    virtual void Close() = 0;
    // Cancels the call, whatever it is at.
    void Cancel() { context_.TryCancel(); }
    // Whether its caller still may do what it does.
    bool IsAllowed() const;

   protected:
    // `context` is the call's, of the method of this name; `resources` outlive the streams.
    Stream(const grpc::CallbackServerContext& context, const Resources& resources,
           const char* method);
    ~Stream() = default;

    // In between it may be closed and cancelled, by other threads.
    void Register() { streams_.Add(*this); }
    void Unregister() { streams_.Remove(*this); }
    // Around each write of a message.
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
    const grpc::CallbackServerContext& context_;
    const Resources& resources_;
    // Or why the call is none.
    const absl::StatusOr<Caller> caller_;
    const RpcTimer timer_;
  };

  explicit OpenStreams(Clock clock) : clock_(std::move(clock)) {}

  // Closes all, and those that are opened later.
  void Close();
  // Cancels those whose client has not taken a message for longer than kPatience.
  void CancelStalled();
  // Waits until there is no call. Whether that came true in time.
  bool AwaitNone(absl::Time deadline) ABSL_LOCKS_EXCLUDED(calls_mutex_);
  // Cancels those whose caller may no longer do what they do.
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
