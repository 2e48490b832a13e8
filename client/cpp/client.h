// A client of one server, for workers in C++. For all other calls use gRPC's stub.
//
// client/cpp/example.cc is a worker from its first call to its last.
//
// It neither places sequences on replicas nor reopens lost runs; Python's sis.Client does.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/block/pack.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

struct ClientOptions {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  // Bearer token of every call; empty: none. Needs TLS.
  std::string token = {};
  // Maximum time of a call, or of a Flush.
  absl::Duration timeout = absl::Seconds(60);
};

class AppendStream;

// Thread-safe. Calls block. They return the server's errors (proto/sis/v1), DeadlineExceeded, or
// Unavailable without a connection: the server may have executed the call.
class Client {
 public:
  // Connects with the first call. `address` is host:port, or unix:PATH.
  explicit Client(const std::string& address, ClientOptions options = {});

  absl::StatusOr<v1::CreateRunResponse> CreateRun(const v1::CreateRunRequest& request) const;

  // Returns a stream of records. `header` names the run and the sampling of the log-probs. The
  // client must outlive the stream.
  std::unique_ptr<AppendStream> OpenAppend(const v1::AppendHeader& header) const;

 private:
  friend class AppendStream;

  // Sets credentials and deadline of a call.
  void Prepare(grpc::ClientContext& context, absl::Time deadline) const;

  const ClientOptions options_;
  const std::unique_ptr<v1::RatioService::StubInterface> stub_;
};

// Used by one thread at a time.
class AppendStream {
 public:
  // Ends the stream without waiting. Entries that were added since the last Flush are not stored.
  ~AppendStream();

  // Add an entry to the next batch, without sending it. A batch may hold 65,536 entries and
  // --max_message_bytes. AddBlock returns PackBlock's errors, and then adds nothing.
  absl::Status AddBlock(const v1::SequenceRef& sequence, const RecordView& records,
                        const PackOptions& options);
  void AddGap(const v1::SequenceRef& sequence, const v1::Gap& gap);
  void AddSeal(const v1::SequenceRef& sequence, const v1::Seal& seal);

  // Sends the batch, and returns when the server has stored it. An entry that the server has no
  // space for is resent after the server's delay, until the timeout. Returns the error of the first
  // refused entry, after the others are stored. Drops refused entries. Entries without an answer
  // stay in the batch, and the next Flush resends them.
  absl::Status Flush();

 private:
  friend class Client;
  using Stream = grpc::ClientAsyncReaderWriterInterface<v1::AppendRequest, v1::AppendResponse>;

  AppendStream(const Client& client, const v1::AppendHeader& header)
      : client_(client), header_(header) {}

  // Opens a stream if there is none.
  absl::Status Open(absl::Time deadline);
  // Sends the batch and receives its acks.
  absl::Status Exchange(v1::AppendResponse& response, absl::Time deadline);
  // Waits for the current operation, and returns true if it succeeded. Cancels the stream at the
  // deadline.
  bool Done(absl::Time deadline);
  // Closes the stream, and returns why it failed.
  absl::Status Close();

  const Client& client_;
  const v1::AppendHeader header_;
  v1::AppendRequest request_;  // the batch
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<Stream> stream_;  // null if none is open
  bool timed_out_ = false;
};

}  // namespace sis
