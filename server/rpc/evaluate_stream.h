// The server's end of one EvaluateStream.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/rpc/open_streams.h"
#include "server/rpc/resources.h"
#include "server/threads/mutex.h"

namespace sis {

// Evaluates several requests of a stream side by side and answers them in order. Reads no further
// while kMaxRequests or kMaxBytes of them are unanswered, so a trainer that is ahead waits in its
// own writes. Owns itself; what it is given must outlive the gRPC server.
class EvaluateStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                             public std::enable_shared_from_this<EvaluateStream>,
                             private OpenStreams::Stream {
 public:
  static constexpr size_t kMaxRequests = 4;
  static constexpr size_t kMaxBytes = 64 << 20;

  // `context` is the call's.
  static EvaluateStream* Start(const grpc::CallbackServerContext& context,
                               const Resources& resources);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  struct Request {
    size_t bytes;
    std::optional<absl::StatusOr<grpc::ByteBuffer>> answer;
  };

  EvaluateStream(const grpc::CallbackServerContext& context, const Resources& resources);
  void Close() override;
  void OnAnswer(Request& request, absl::StatusOr<grpc::ByteBuffer> answer);
  // Starts whatever can be started now: a write, a read, the end.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Nobody wants the answers any more.
  std::atomic<bool> stopped_ = false;

  Mutex mutex_;
  // Workers may still be busy when gRPC is done.
  std::shared_ptr<EvaluateStream> self_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer received_;  // of the read that is under way
  // In the order of their arrival, until their answer is written.
  std::deque<std::shared_ptr<Request>> unanswered_ ABSL_GUARDED_BY(mutex_);
  size_t unanswered_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::StatusCode code_ ABSL_GUARDED_BY(mutex_) = absl::StatusCode::kOk;
};

}  // namespace sis
