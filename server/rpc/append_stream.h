// The server side of one Append stream.
#pragma once

#include <google/protobuf/arena.h>
#include <grpcpp/grpcpp.h>

#include <array>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/append/ingest.h"
#include "server/rpc/open_streams.h"
#include "server/rpc/reaction_order.h"
#include "server/rpc/resources.h"
#include "server/threads/mutex.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Reads a message, answers it, and reads the next. A worker that is faster than the server thus
// waits in its own writes. Holds one message at a time. Deletes itself.
class AppendStream final : public grpc::ServerBidiReactor<v1::AppendRequest, v1::AppendResponse>,
                           private OpenStreams::Stream {
 public:
  // `context` belongs to the call.
  AppendStream(grpc::CallbackServerContext& context, const Resources& resources);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  void Close() override;

  void ReadNext();
  void End(const absl::Status& status);
  void HandleRequest();
  absl::Status OpenIngest();
  // Applies and stores the batch, and adds its acks to the response.
  absl::Status HandleBatch();
  // Frees the message and its response.
  void Clear();

  ReactionOrder order_;
  Mutex mutex_;  // not held where the stream ends, because it then deletes itself
  // reading_: waits for the next message. closed_: must not read any more.
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::optional<Ingest> ingest_;
  // The current message and its response. An arena halves the time to parse a batch of single
  // tokens. Small messages need no other memory.
  alignas(8) std::array<char, 1024> space_;
  google::protobuf::Arena arena_{space_.data(), space_.size()};
  v1::AppendRequest* request_ = nullptr;
  v1::AppendResponse* response_ = nullptr;
  std::vector<EntryAck> acks_;
};

}  // namespace sis
