// The server's end of one Append stream.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/append/ingest.h"
#include "server/rpc/open_streams.h"
#include "server/rpc/reaction_order.h"
#include "server/rpc/resources.h"
#include "server/threads/mutex.h"
#include "server/wire/append_request.h"
#include "server/wire/append_response.h"

namespace sis {

// Reads a message, answers it, reads the next, so that a worker that is faster than the cache waits
// in its own writes.
// Holds one message at a time, as gRPC received it, and reads it in place. Owns itself.
class AppendStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           private OpenStreams::Stream {
 public:
  // `context` is the call's.
  AppendStream(const grpc::CallbackServerContext& context, const Resources& resources);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  void Close() override;

  void ReadNext();
  void End(const absl::Status& status);
  void HandleRequest();
  // Once the batch is applied: stores it, then acks it.
  void Answer();
  // Gives back what a message has taken, once it is acked.
  void Clear();
  absl::Status Parse();
  absl::Status OpenIngest();

  ReactionOrder order_;
  Mutex mutex_;  // not held where the stream ends, as it goes then
  // Whether it waits for a message, with none at hand; whether it may no more.
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::optional<Ingest> ingest_;
  // The message at hand: as it was read, and what is in it; and its answer.
  grpc::ByteBuffer received_;
  ParsingCharge charge_;  // goes after what it is for
  ReceivedAppend request_;
  std::vector<EntryAck> acks_;
  std::string answer_;
  grpc::ByteBuffer written_;
};

}  // namespace sis
