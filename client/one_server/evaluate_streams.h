// Many Evaluates at once, over streams.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/one_server/channel.h"
#include "client/one_server/credentials.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Two connections to one server, with a few requests under way on each. Thread-safe.
class EvaluateStreams {
 public:
  // Connects when it is first used. `timeout` is of one Evaluate.
  EvaluateStreams(std::string address, Credentials credentials, TraceParentSource traceparent,
                  absl::Duration timeout);

  // Sends the requests 0 to count - 1, each an EvaluateRequest that `make_request` makes when it is
  // about to be sent, on one thread at a time; returns their answers in order, or the first error.
  // After an error the connections are closed, so that gRPC lets go of what it was sending.
  absl::StatusOr<std::vector<v1::EvaluateResponse>> Evaluate(
      size_t count, absl::FunctionRef<grpc::ByteBuffer(size_t)> make_request);

 private:
  using Channels = std::vector<std::shared_ptr<grpc::Channel>>;

  Channels Connect();

  const std::string address_;
  const Credentials credentials_;
  const TraceParentSource traceparent_;
  const absl::Duration timeout_;
  std::mutex mutex_;
  Channels channels_;  // guarded by mutex_; empty if not connected
};

}  // namespace sis
